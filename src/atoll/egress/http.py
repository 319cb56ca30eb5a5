"""HTTP/1.1 over a stream, by h11: as a server to the guest, as a client to servers."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import h11

from atoll.egress.rules import RefusedError
from atoll.egress.streams import PlainStream
from atoll.network import HTTPS, NetworkRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from atoll.egress.streams import Stream

Headers = list[tuple[bytes, bytes]]
HEAD_BYTES = 64 * 1024
MAX_HEADERS, VALUE_BYTES = 256, 16 * 1024
"""Most headers of a response, and most bytes of one: each of them is searched for secrets."""
DRAIN_SECONDS, DRAIN_BYTES = 1.0, 1 << 20
_VERSIONS = (b"1.0", b"1.1")
PORTS = {"http": 80, "https": HTTPS}
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"proxy-authenticate",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
        b"http2-settings",
    }
)
"""Hop-by-hop headers, which are not passed on."""
_LENGTH = frozenset({b"content-length"})
_SIGN = re.compile(rb"[^a-z0-9]")
_AUTHORITY = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?\Z")


class HttpPeer:
    """One side of a connection."""

    def __init__(self, stream: Stream, role: type[Any]) -> None:
        self.stream = stream
        self.h11 = h11.Connection(role, max_incomplete_event_size=HEAD_BYTES)
        self.on_sent: Callable[[int], None] = _ignore
        self.on_received: Callable[[int], None] = _ignore

    async def next_event(self) -> Any:
        """Return the next event of the other side; h11.RemoteProtocolError if it breaks HTTP."""
        while True:
            event = self.h11.next_event()
            if event is not h11.NEED_DATA:
                return event
            await self._receive()

    async def send(self, event: Any) -> None:
        """Send an event, serialised by h11."""
        if data := self.h11.send(event):
            self.on_sent(len(data))
            await self.stream.write(data)

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the other side's message, in pieces as they were read, however small its chunks."""
        piece = bytearray()
        while True:
            event = self.h11.next_event()
            if isinstance(event, h11.Data):
                piece += event.data
                continue
            if piece:
                yield bytes(piece)
                piece.clear()
            if event is not h11.NEED_DATA:
                return
            await self._receive()

    async def drain(self) -> None:
        """Read for a moment: closing a socket with unread bytes would lose the response."""
        with contextlib.suppress(h11.RemoteProtocolError):
            if isinstance(self.h11.next_event(), h11.EndOfMessage):
                return  # all of the request was read
        if isinstance(self.stream, PlainStream):
            await self.stream.end()
        left = DRAIN_BYTES
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while left > 0 and (data := await self.stream.read()):
                    left -= len(data)
        except (TimeoutError, OSError):
            pass

    async def _receive(self) -> None:
        data = await self.stream.read()
        self.on_received(len(data))
        self.h11.receive_data(data)

    @property
    def reusable(self) -> bool:
        """Whether another request can follow on this connection."""
        return self.h11.our_state is h11.DONE and self.h11.their_state is h11.DONE


def asked_of(event: h11.Request, tunnel: NetworkRequest | None) -> tuple[NetworkRequest, bytes]:
    """Return the guest's request and the target for the server; RefusedError if ambiguous.

    `tunnel` is the CONNECT that this request came through. SECURITY: only its host is allowed.
    """
    method, target = event.method.decode("ascii"), event.target.decode("ascii")
    if event.http_version not in _VERSIONS:
        raise RefusedError("the proxy speaks HTTP/1.1 alone", 400)
    names = [name for name, _ in event.headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise RefusedError("a request has two lengths, which servers read in two ways", 400)
    if tunnel is not None:
        _check_host_header(event, tunnel)
        scheme, host, port, rest = "https", tunnel.host, tunnel.port, target
    elif method == "CONNECT":
        host, port = split_authority(target, None)
        return NetworkRequest(host=host, port=port, method=method), b""
    else:
        scheme, host, port, rest = _split_url(target)
    if not rest.startswith("/") and (rest, method) != ("*", "OPTIONS"):
        raise RefusedError("a request for the proxy must have a whole URL: http://host/path", 400)
    path = rest.partition("?")[0]
    asked = NetworkRequest(host=host, port=port, method=method, scheme=scheme, path=path)
    return asked, rest.encode("ascii")


def split_authority(text: str, default: int | None) -> tuple[str, int]:
    """Return host in lower case, and port; RefusedError if it is not a valid host and port."""
    match = _AUTHORITY.match(text)
    port = int(match["port"]) if match and match["port"] else default
    if match is None or port is None or not 0 < port < 1 << 16:
        raise RefusedError(f"not a host and port: {text[:100]!r}", 400)
    return match["host"].lower().strip("[]").rstrip("."), port


def usual_name(name: bytes) -> bytes:
    """Return a header's name as servers see it that read `X_Name` and `X.Name` as `X-Name`."""
    return _SIGN.sub(b"-", name.lower())


def forwarded(headers: Iterable[tuple[bytes, bytes]], drop: frozenset[bytes]) -> Headers:
    """Return the end-to-end headers, without those to drop, however these are spelled.

    SECURITY: a header that some servers read as one of those is one of those.
    """
    named = {
        usual_name(part.strip())
        for name, value in headers
        if name == b"connection"
        for part in value.split(b",")
    }
    gone = _HOP_BY_HOP | drop | (named - _LENGTH)
    spelled = gone | _LENGTH | {b"host"}
    return [
        (name, value)
        for name, value in headers
        if (usual := usual_name(name)) not in gone and (usual == name or usual not in spelled)
    ]


def _split_url(target: str) -> tuple[str, str, int, str]:
    try:
        parts = urlsplit(target)
    except ValueError:
        raise RefusedError(f"not a URL: {target[:100]!r}", 400) from None
    scheme = parts.scheme.lower()
    if scheme not in PORTS or not parts.netloc:
        raise RefusedError("a request for the proxy must have a whole URL: http://host/path", 400)
    host, port = split_authority(parts.netloc, PORTS[scheme])
    return scheme, host, port, target[len(parts.scheme) + 3 + len(parts.netloc) :] or "/"


def _check_host_header(event: h11.Request, tunnel: NetworkRequest) -> None:
    """SECURITY: refuse a request for another host inside a tunnel."""
    for name, value in event.headers:
        if name == b"host":
            asked = split_authority(value.decode("ascii", "replace"), tunnel.port)
            if asked != (tunnel.host, tunnel.port):
                raise RefusedError(
                    f"a connection to {tunnel.place} carries a request for {asked[0]}:{asked[1]}"
                )


def _ignore(_size: int) -> None:
    """Count nothing."""
