"""One request over HTTP, within limits: what a broken or hostile server sends is a Fault."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import TYPE_CHECKING, Any

import httpx2

from atoll.agent.rlm.models import faults
from atoll.egress import certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from atoll.agent.rlm.models.client import Address, Limits
    from atoll.agent.rlm.models.faults import Fault

    Take = Callable[[Mapping[str, Any]], bool]
    """Given the answer, or each event of it; true: there is no more to come."""

_ERROR_BYTES = 64 * 1024
_END = "[DONE]"
_HEADERS = {
    "content-type": "application/json",
    # A compressed answer could be far larger than what came over the wire.
    "accept-encoding": "identity",
}
_REASONS = {
    "connection refused": "connection refused",
    "all connection attempts failed": "connection refused",
    "name or service not known": "the host name is not known",
    "nodename nor servname": "the host name is not known",
    "no address associated": "the host name is not known",
    "temporary failure in name resolution": "the host name cannot be resolved now",
    "certificate": "the server's certificate is not trusted",
    "network is unreachable": "the network is unreachable",
}
"""What the system's error texts mean, by words in them."""


class TooLargeError(Exception):
    """An answer beyond its limit."""


class Transport:
    """Connections to one server, kept for the next request."""

    def __init__(self, address: Address, limits: Limits) -> None:
        self._address = address
        self._limits = limits
        self._client: httpx2.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def exchange(
        self, path: str, headers: dict[str, str], body: Mapping[str, object], take: Take
    ) -> Fault | None:
        """Send `body`, hand what comes to `take`; None: an answer came to its end."""
        try:
            async with self._connected().stream(
                "POST",
                self._address.url + path,
                headers={**_HEADERS, **headers},
                content=json.dumps(body).encode(),  # ASCII: half characters do not fail here
                timeout=self._timeout(streamed=bool(body.get("stream"))),
            ) as response:
                return await self._read(response, take)
        except (httpx2.HTTPError, TooLargeError) as exc:
            return self._fault(exc)

    async def close(self) -> None:
        """Close every connection."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    def _connected(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:  # connections belong to a loop
            self._loop = loop
            self._client = httpx2.AsyncClient(
                trust_env=not self._address.local,  # a proxy would be asked for its own loopback
                follow_redirects=False,  # a key goes where it was meant to go
                verify=self._trusted(),
            )
        return self._client

    def _trusted(self) -> ssl.SSLContext | bool:
        """Return the usual authorities; none without encryption, as reading them takes time."""
        plain = self._address.local and self._address.url.startswith("http:")
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True

    def _timeout(self, *, streamed: bool) -> httpx2.Timeout:
        """Return httpx's time limits; the caller has a deadline for the whole call."""
        idle = self._limits.idle_seconds
        return httpx2.Timeout(
            connect=self._limits.connect_seconds,
            read=idle if streamed else None,
            write=idle,
            pool=None,
        )

    def _fault(self, exc: Exception) -> Fault:
        limits = self._limits
        if isinstance(exc, httpx2.ConnectTimeout):
            return faults.unreachable(f"no connection in {limits.connect_seconds:g} s")
        if isinstance(exc, httpx2.TimeoutException):
            return faults.silent(limits.idle_seconds)
        if isinstance(exc, httpx2.SSEError):
            return faults.broken(f"an event has over {limits.max_event_bytes:,} bytes")
        if isinstance(exc, TooLargeError):
            return faults.broken(f"the answer has over {limits.max_bytes:,} bytes")
        if certificates.is_refusal(str(exc)):
            return faults.unreachable(certificates.ADVICE)
        return faults.unreachable(_why_not_connected(exc))

    async def _read(self, response: httpx2.Response, take: Take) -> Fault | None:
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.strip().lower() not in {"", "identity"}:
            return faults.broken("the answer is compressed, which was not asked for")
        if not response.is_success:
            body = await _body(response, _ERROR_BYTES, cut=True)
            said = _parse(body) or body.decode("utf-8", "replace")
            return faults.of_status(response.status_code, response.headers, said)
        if "event-stream" in response.headers.get("content-type", ""):
            return await self._read_events(response, take)
        answer = _parse(await _body(response, self._limits.max_bytes))
        if answer is None:
            return faults.broken("the answer is not a JSON object")
        fault = faults.in_answer(answer)
        if fault is None:
            take(answer)
        return fault

    async def _read_events(self, response: httpx2.Response, take: Take) -> Fault | None:
        response.encoding = "utf-8"  # whatever the server calls it
        async for event in httpx2.EventSource(response, self._limits.max_event_bytes):
            if response.num_bytes_downloaded > self._limits.max_bytes:
                raise TooLargeError
            if event.data.strip() == _END:
                return None
            if not event.data:
                continue
            said = _parse(event.data)
            if said is None:
                return faults.broken("an event is not a JSON object")
            if fault := faults.in_answer(said):
                return fault
            if take(said):
                return None
        return faults.broken("the answer ended before its end", retry=True)


def _why_not_connected(exc: Exception) -> str:
    """Return the reason in words. The system's own text is looked at, and not repeated."""
    text = str(exc).lower()
    return next(
        (reason for sign, reason in _REASONS.items() if sign in text),
        f"no connection, or it failed ({type(exc).__name__})",
    )


async def _body(response: httpx2.Response, limit: int, *, cut: bool = False) -> bytes:
    data = bytearray()
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > limit:
            if cut:
                break
            raise TooLargeError
    return bytes(data)


def _parse(text: str | bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
