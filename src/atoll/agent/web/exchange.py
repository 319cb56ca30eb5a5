"""One request and its answer, by httpcore2, which has no cookies, proxies or passwords."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import httpcore2

from atoll.agent.web.body import ACCEPTED, Body
from atoll.agent.web.pinned import Pinned
from atoll.egress.web_policy import REDIRECTS
from atoll.errors import WebError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ssrfguard import Address, Target

_SAFE = "/%:@!$&'()*+,;=~-._?[]"
_HEADERS: dict[bytes | str, bytes | str] = {
    "User-Agent": "atoll",
    "Accept": "text/html, text/*, application/json, application/pdf;q=0.9, */*;q=0.1",
    "Accept-Encoding": ACCEPTED,
    "Connection": "close",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The server's response."""

    status: int
    headers: dict[str, str]
    """By name in lower case; the first of several with one name."""
    body: bytes
    truncated: bool


async def exchange(url: str, target: Target, addresses: Sequence[Address], most: int) -> Reply:
    """GET a checked URL from one of the checked addresses."""
    backend = Pinned(addresses, target.port)
    tls = _tls() if target.scheme == "https" else None
    try:
        async with (
            httpcore2.AsyncConnectionPool(ssl_context=tls, network_backend=backend) as pool,
            pool.stream("GET", _address(url, target), headers=_HEADERS) as response,
        ):
            return await _read(response, most)
    except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as exc:
        fault = str(exc) or type(exc).__name__
        raise WebError(f"{target.host} failed: {fault[:300]}") from None


async def _read(response: httpcore2.Response, most: int) -> Reply:
    headers: dict[str, str] = {}
    for name, value in response.headers:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    if response.status in REDIRECTS:
        return Reply(status=response.status, headers=headers, body=b"", truncated=False)
    body = Body(headers.get("content-encoding", ""), most)
    async for piece in response.aiter_stream():
        body.add(piece)
        if body.truncated:
            break
    data = body.end()
    return Reply(status=response.status, headers=headers, body=data, truncated=body.truncated)


def _address(url: str, target: Target) -> httpcore2.URL:
    """Return the URL with the checked host, and the rest percent-encoded as needed."""
    parts = urlsplit(url)
    query = f"?{quote(parts.query, safe=_SAFE)}" if parts.query else ""
    path = quote(parts.path, safe=_SAFE.replace("?", "")) or "/"
    host = target.host.rstrip(".")
    return httpcore2.URL(
        scheme=target.scheme.encode(),
        host=f"[{host}]".encode() if ":" in host else host.encode(),
        port=target.port,
        target=(path + query).encode(),
    )


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """Return a TLS context with the system's authorities; cached, because it takes 20 ms."""
    return ssl.create_default_context()
