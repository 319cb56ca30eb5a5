# SECURITY: a node does what it is told on this connection. Before the other end has proved that it
# knows the node's secret, which Ray handed over, nothing is read but a handshake of known length.
"""The connection between a driver and a node: messages, each with bytes beside it.

    driver ── hello, nonce ──────────────▶ node      the secret is the node's
    driver ◀──────────── nonce, proof ──── node
    driver ── proof ─────────────────────▶ node
    driver ◀── frames ───────────────────▶ node

Ray finds the nodes and notices their death. It does not carry messages: a call of an actor for each
of them costs more than a cell.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import ssl
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from atoll.fleet import frames
from atoll.fleet.peer import CROWDED, MessagePeer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atoll.fleet.frames import Message
    from atoll.fleet.peer import Hear, Serve

HELLO = b"atoll-1\n"
NONCE, PROOF = 32, 32
HANDSHAKE_SECONDS, HANDSHAKE_BYTES = 10.0, 128
MOST_STRANGERS = 64
"""Connections at one time whose other end has not proved that it knows the secret."""
BEAT_SECONDS, KEEP_SECONDS = 1.0, 5.0
"""After which an end that has nothing to say says that it lives."""
SILENT_SECONDS = 15.0
"""After which an end that says nothing is taken for dead."""


class Link(asyncio.BufferedProtocol):
    """One end. `peer` calls the other end, and serves its calls, once `ready` is done."""

    def __init__(
        self, secret: bytes, serve: Serve, hear: Hear, on_end: Callable[[Link, str], None], *,
        dials: bool, name: str = "",
    ) -> None:  # fmt: skip
        self.peer = MessagePeer(serve, hear, self._on_post, self._on_flood)
        self._secret, self._on_end, self._dials, self._name = secret, on_end, dials, name
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._room = memoryview(bytearray(HANDSHAKE_BYTES))
        self._frame, self._filled = bytearray(), 0
        """A large message that has come in part: the rest is received there, without a copy."""
        self._rest = self._room
        self._nonce = secrets.token_bytes(NONCE)
        self._theirs = b""
        self._planned = False
        self._timer = self._loop.call_later(HANDSHAKE_SECONDS, self.end, "no handshake in time")
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.on_ready: Callable[[], None] = lambda: None
        self.news: Callable[[], Message | None] = lambda: None
        """Returns what is to be sent along with other messages now and then."""
        self.heard = self.sent = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=CROWDED)
        if self._dials:
            self._transport.write(HELLO + self._nonce)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the calls that wait."""
        self.end("the connection was closed" if exc is None else f"the connection broke: {exc}")

    def pause_writing(self) -> None:
        """Let calls and replies wait: the other end does not read."""
        self.peer.crowd(crowded=True)

    def resume_writing(self) -> None:
        """Let them go on."""
        self.peer.crowd(crowded=False)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        self._rest = memoryview(self._frame)[self._filled :] if self._frame else self._room
        return self._rest

    def buffer_updated(self, count: int) -> None:
        """Take messages; before the handshake is over, the next part of it."""
        self.heard = self._loop.time()
        if not self._frame:
            self._received += self._room[:count]
        else:
            self._rest.release()  # asyncio still has it, and a viewed bytearray cannot shrink
            self._filled += count
            if self._filled < len(self._frame):
                return
            self._received, self._frame = self._frame, bytearray()
        try:
            if not self.ready.done() and not self._shake_hands():
                return
            self._take_frames()
        except (ValueError, TypeError, LookupError, RecursionError) as exc:
            self.end(f"it broke the protocol: {type(exc).__name__}")

    def end(self, why: str) -> None:
        """Close the connection: calls that wait fail, requests that run are cancelled."""
        if self.peer.ended:
            return
        self._timer.cancel()
        self.peer.end(f"the node {self._name} was lost: {why}" if self._name else why)
        if self._transport is not None:
            self._transport.abort()
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(why))
            self.ready.exception()  # asyncio would warn if no caller waits for it
        self._on_end(self, why)

    def _beat(self) -> None:
        """Say that this end lives; give the other one up if it has been silent for too long."""
        now = self._loop.time()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
        if now - self.heard > SILENT_SECONDS:
            self.end(f"it has been silent for {now - self.heard:.0f} s")
        elif now - self.sent > KEEP_SECONDS:
            self.peer.notify("alive", {})

    def _shake_hands(self) -> bool:
        """Take the next part of the handshake; return whether it is over."""
        if self._dials:
            return self._check(NONCE + PROOF, b"node", b"driver")
        if not self._theirs:
            if not HELLO.startswith(self._received[: len(HELLO)]):
                raise ValueError("not a driver")
            if len(self._received) < len(HELLO) + NONCE:
                return False
            self._theirs = bytes(self._received[len(HELLO) : len(HELLO) + NONCE])
            del self._received[: len(HELLO) + NONCE]
            assert self._transport is not None
            self._transport.write(self._nonce + self._proof(b"node", self._theirs, self._nonce))
        return self._check(PROOF, b"driver", b"")

    def _check(self, length: int, role: bytes, own: bytes) -> bool:
        """Check the other end's proof, and send this end's if it is asked for."""
        if len(self._received) < length:
            return False
        given = bytes(self._received[:length])
        del self._received[:length]
        nonces = (self._nonce, given[:NONCE]) if self._dials else (self._theirs, self._nonce)
        if not hmac.compare_digest(given[-PROOF:], self._proof(role, *nonces)):
            raise ValueError("it does not know the secret")
        if own and self._transport is not None:
            self._transport.write(self._proof(own, *nonces))
        self._timer.cancel()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
        self._room = memoryview(bytearray(frames.LARGE))
        self.ready.set_result(None)
        self.on_ready()
        return True

    def _proof(self, role: bytes, drivers: bytes, nodes: bytes) -> bytes:
        return hmac.digest(self._secret, role + drivers + nodes, hashlib.sha256)

    def _take_frames(self) -> None:
        while not self.peer.ended and (found := frames.take(self._received)) is not None:
            message, self._received = found
            self.peer.deliver(message)
        size = frames.size(self._received)
        if size - len(self._received) >= frames.LARGE:
            self._filled, self._frame = len(self._received), bytearray(size)
            self._frame[: self._filled] = self._received
            self._received = bytearray()

    def _on_flood(self) -> None:
        self.end("it does not read what it is sent")

    def _on_post(self) -> None:
        """Send soon: messages of one turn of the loop are written at once."""
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._planned = False
        if self._transport is None or not self.ready.done() or self.peer.ended:
            return
        parts = self.peer.take()
        if (news := self.news()) is not None:
            parts += frames.encode(news)
        self.sent = self._loop.time()
        for part in _gathered(parts):
            self._transport.write(part)


def _gathered(parts: list[frames.Buffer]) -> Iterator[frames.Buffer]:
    """Yield small parts together, for one system call, and large ones without a copy."""
    for large, some in groupby(parts, key=lambda one: len(one) >= frames.LARGE):
        if large:
            yield from some
        else:
            yield b"".join(some)


def tls(*, server: bool) -> ssl.SSLContext | None:
    """Return what encrypts the connection, if Ray's own are encrypted (RAY_USE_TLS=1)."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # as Ray: the authority signs for the fleet alone
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    context.load_verify_locations(os.environ["RAY_TLS_CA_CERT"])
    return context


class Strangers:
    """Ends connections above a number whose other end has proved nothing yet.

    SECURITY: anybody who reaches the port can make them; each has a descriptor and a timer. The
    oldest goes: a driver proves itself in milliseconds, while one that says nothing stays.
    """

    def __init__(self, most: int = MOST_STRANGERS) -> None:
        self._most, self._links = most, dict[Link, None]()

    def add(self, link: Link) -> None:
        """Count a connection that was just made."""
        self._links = {one: None for one in self._links if not one.ready.done()}
        if len(self._links) >= self._most:
            oldest = next(iter(self._links))
            del self._links[oldest]
            oldest.end("too many connections without a proof")
        self._links[link] = None


async def dial(address: tuple[str, int], link: Link) -> None:
    """Connect to a node; return once it has proved that it is the one that Ray named."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await loop.create_connection(lambda: link, *address, ssl=tls(server=False))
            await asyncio.shield(link.ready)
    except BaseException as exc:
        link.end(f"no connection to {address[0]}:{address[1]}: {exc or type(exc).__name__}")
        raise


def facts_message(facts: dict[str, Any]) -> Message:
    """Return the notification by which a node tells its load."""
    return {"method": "facts", "params": facts}
