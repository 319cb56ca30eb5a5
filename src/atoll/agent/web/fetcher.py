"""Fetches pages as text: checks every redirect, with one time limit for all of it."""

from __future__ import annotations

import asyncio
import ssl
import time
import zlib
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urldefrag, urljoin, urlsplit

import httpcore2

from atoll.agent.archive.inflate import Zlib
from atoll.agent.web.reading import read
from atoll.egress.url_guard import REDIRECTS, Guard, Page, WebPolicy
from atoll.errors import ConfigError, WebError, WebRefusedError
from atoll.extras import hint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ssrfguard import Address, Resolver, Target

    from atoll.agent.archive.inflate import Decompressor


ACCEPTED = "gzip, deflate"
_WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class Body:
    """The body received so far."""

    def __init__(self, encoding: str, most: int) -> None:
        """`encoding`: the header Content-Encoding."""
        self._most = most
        self._packed = _unpacker(encoding)
        self._came = 0
        self._data = bytearray()
        self.truncated = False

    def add(self, piece: bytes) -> None:
        """Add the next bytes; after `truncated` no more are needed."""
        self._came += len(piece)
        room = self._most - len(self._data)
        self._data += self._unpack(piece, room + 1)
        if len(self._data) > self._most or self._came > self._most:
            del self._data[self._most :]
            self.truncated = True

    def end(self) -> bytes:
        """Return the whole body, after the server has closed it."""
        if self._packed is not None and self._came and not self._packed.eof:
            self.truncated = True
        return bytes(self._data)

    def _unpack(self, piece: bytes, most: int) -> bytes:
        if self._packed is None:
            return piece
        if self._packed.eof:
            return b""  # ignores zeros or another stream, which servers do not send
        try:
            return self._packed.decompress(piece, most)
        except zlib.error as exc:
            raise WebError(f"the server's compressed data is damaged: {exc}") from None


def _unpacker(encoding: str) -> Decompressor | None:
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return None
    if name not in _WBITS:
        raise WebError(f"the server sent the encoding {name[:100]!r}, which was not asked for")
    return Zlib(_WBITS[name])


_MAX_ATTEMPTS = 4
_SECONDS_EACH = 5.0
"""Seconds to connect to one address before the next is tried."""


class Pinned(httpcore2.AsyncNetworkBackend):
    """Connects to one of these addresses; the Host header and TLS still use the URL's name."""

    def __init__(self, addresses: Sequence[Address], port: int) -> None:
        self._addresses, self._port = addresses, port

    async def connect_tcp(
        self, host: str, port: int, *_: Any, **__: Any
    ) -> httpcore2.AsyncNetworkStream:
        """Return a stream to the first address that answers; `host` is not resolved."""
        assert port == self._port, host
        faults = []
        for address in self._addresses[:_MAX_ATTEMPTS]:
            try:
                stream = await httpcore2.AnyIOBackend().connect_tcp(
                    str(address.ip), port, timeout=_SECONDS_EACH
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as exc:
                faults.append(f"{address.ip}: {str(exc) or type(exc).__name__}")
                continue
            await _check_peer(stream, address)
            return stream
        raise WebError(f"{host} does not answer ({'; '.join(faults)})")


async def _check_peer(stream: httpcore2.AsyncNetworkStream, address: Address) -> None:
    peer = ip_address(stream.get_extra_info("server_addr")[0])
    if peer != address.ip:
        await stream.aclose()
        raise WebError(f"the connection to {address.ip} went to {peer}")


MAX_PAGES = 64
MAX_CHARACTERS = 16_000_000


class Cache:
    """The pages of one Fetcher by requested URL; the oldest are dropped first."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._now = seconds, now
        self._pages: OrderedDict[str, tuple[float, Page]] = OrderedDict()
        self.characters = 0

    def __len__(self) -> int:
        return len(self._pages)

    def get(self, key: str) -> Page | None:
        """Return the page; None if it is not cached or too old."""
        kept = self._pages.get(key)
        if kept is None:
            return None
        if self._now() - kept[0] >= self._seconds:
            self._drop(key)
            return None
        return replace(kept[1], from_cache=True)

    def put(self, key: str, page: Page) -> None:
        """Add a page, and drop the oldest ones over the limits."""
        if not self._seconds:
            return
        self._drop(key)
        self._pages[key] = (self._now(), page)
        self.characters += _size(page)
        while len(self._pages) > MAX_PAGES or self.characters > MAX_CHARACTERS:
            self._drop(next(iter(self._pages)))

    def _drop(self, key: str) -> None:
        if kept := self._pages.pop(key, None):
            self.characters -= _size(kept[1])


def _size(page: Page) -> int:
    return sum(map(len, (page.text, page.title, page.url, page.final_url)))


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


_AT_ONCE = 4
"""Fetches, and DNS lookups, at one time; further ones wait."""
_OK = 200


class Fetcher:
    """Fetches for one guest, with a cache of its own."""

    def __init__(
        self, policy: WebPolicy | None = None, *, resolver: Resolver | None = None
    ) -> None:
        """`resolver`: in place of `socket.getaddrinfo`."""
        self.policy = policy or WebPolicy()
        self._guard = Guard(self.policy, resolver)
        self._cache = Cache(self.policy.cache_seconds)
        self._turns = asyncio.Semaphore(_AT_ONCE)
        # a lookup cannot be cancelled: it has its own threads, so that other work does not wait
        self._lookups = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="atoll-lookup")

    async def fetch(self, url: str) -> Page:
        """Return a page as text; WebRefusedError says which rule of the policy forbids it."""
        self._guard.check(url)
        key = urldefrag(url).url
        if page := self._cache.get(key):
            return replace(page, url=url)
        seconds = self.policy.timeout_seconds
        try:
            async with asyncio.timeout(seconds), self._turns:
                page, keep = await self._fetch(url)
        except TimeoutError:
            raise WebError(f"{url[:300]!r} took longer than timeout_seconds={seconds}") from None
        if keep:
            self._cache.put(key, page)
        return page

    def close(self) -> None:
        """Release the threads; lookups that still run end by themselves."""
        self._lookups.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.close()

    async def _fetch(self, url: str) -> tuple[Page, bool]:
        final, reply = await self._follow(urldefrag(url).url)
        content_type = reply.headers.get("content-type", "")
        seconds, most = self.policy.timeout_seconds, self.policy.max_bytes
        title, text, cut = await read(reply, content_type, seconds=seconds, most=most)
        page = Page(
            url=url,
            final_url=final,
            status=reply.status,
            content_type=content_type[:200],
            title=title,
            text=text,
            truncated=reply.truncated or cut,
        )
        stored = "no-store" not in reply.headers.get("cache-control", "").lower()
        return page, reply.status == _OK and stored

    async def _follow(self, url: str) -> tuple[str, Reply]:
        """Follow redirects and return the last reply; each URL is checked like the first."""
        for _ in range(self.policy.max_redirects + 1):
            reply = await self._once(url)
            location = reply.headers.get("location")
            if location is None or reply.status not in REDIRECTS:
                return url, reply
            url = urldefrag(urljoin(url, _readable(location))).url
        most = self.policy.max_redirects
        raise WebRefusedError(f"{url[:300]!r} is refused: more redirects than max_redirects={most}")

    async def _once(self, url: str) -> Reply:
        try:
            from atoll.agent.web.fetcher import exchange  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError(f"web_fetch needs httpcore2. {hint('web')}") from None
        target = self._guard.check(url)
        loop = asyncio.get_running_loop()
        addresses = await loop.run_in_executor(self._lookups, self._guard.resolve, target)
        return await exchange(url, target, addresses, self.policy.max_bytes)


def _readable(location: str) -> str:
    """Decode a header again as UTF-8: HTTP says Latin-1, but servers mean UTF-8."""
    return location.encode("latin-1").decode("utf-8", "replace")
