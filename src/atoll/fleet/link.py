# SECURITY: a node carries out every request on this connection. Before the other end has proved
# that it knows the node's secret, which Ray handed over, only a handshake of known length is read.
"""The connection between a driver and a node: a TCP socket on which both have proved who they are.

    driver ── hello, nonce ──────────────▶ node      the secret is the node's
    driver ◀──────────── nonce, proof ──── node
    driver ── proof ─────────────────────▶ node
    driver ◀── messages (`rpc.connection`) ─▶ node

Ray finds the nodes and notices their death. It does not carry messages: a call of an actor for each
of them costs more than a cell.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import socket
import ssl
from typing import TYPE_CHECKING, TypeVar

from atoll.concurrency.background import Background
from atoll.errors import SandboxLostError
from atoll.hosting.listener import SocketListener
from atoll.rpc.connection import PeerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
HELLO = b"atoll-2\n"
NONCE, PROOF = 32, 32
HANDSHAKE_SECONDS = 10.0
MAX_STRANGERS = 64
"""Connections at one time whose other end has not proved that it knows the secret."""
SILENT_SECONDS = 15.0
"""After which an end that answers nothing is taken for dead."""
MAX_CALLS = 8192
"""Calls of the other end that run at one time: those of all sessions of a driver on a node."""
_LOG = logging.getLogger("atoll.fleet")


class LinkLostError(SandboxLostError):
    """The connection ended: whether the other end carried out what it was asked is not known."""


def peer_options(name: str) -> PeerOptions:
    """Return how each end treats the other, which `name` names in errors.

    Calls and replies wait for an end that does not read, all of them: sessions of many clients
    share the connection, and none of them may end it for the others.
    """
    return PeerOptions(
        name=name,
        lost_error=LinkLostError,
        max_calls=MAX_CALLS,
        max_waiting=None,
        silent_seconds=SILENT_SECONDS,
        watch_idle=True,
    )


async def dial(address: tuple[str, int], secret: bytes) -> socket.socket:
    """Connect to a node; return once it has proved its identity."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            addresses = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
            family, kind, _, _, place = addresses[0]
            sock = socket.socket(family, kind)
            with _closed_on_error(sock):
                sock.setblocking(False)
                await loop.sock_connect(sock, place)
                context = tls(server=False)
            sock = await _encrypted(sock, context, server=False)
            with _closed_on_error(sock):
                await _prove_to_node(sock, secret)
                return sock
    except (OSError, TimeoutError) as exc:
        reason = str(exc) or "no answer in time"
        raise ConnectionError(f"no connection to {address[0]}:{address[1]}: {reason}") from exc


async def admit(
    sock: socket.socket, secret: bytes, context: ssl.SSLContext | None
) -> socket.socket:
    """Return the connection of a driver that has proved that it knows the secret.

    Raise OSError or TimeoutError for any other process; its connection is closed.
    """
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        sock.setblocking(False)
        sock = await _encrypted(sock, context, server=True)
        with _closed_on_error(sock):
            if await _read(sock, len(HELLO)) != HELLO:
                raise ConnectionError("the other end is not a driver")
            theirs, own = await _read(sock, NONCE), secrets.token_bytes(NONCE)
            await _carry_out(sock, lambda: sock.send(own + _proof(secret, b"node", theirs, own)))
            _check(await _read(sock, PROOF), _proof(secret, b"driver", theirs, own))
            return sock


async def _prove_to_node(sock: socket.socket, secret: bytes) -> None:
    own = secrets.token_bytes(NONCE)
    await _carry_out(sock, lambda: sock.send(HELLO + own))
    theirs = await _read(sock, NONCE)
    _check(await _read(sock, PROOF), _proof(secret, b"node", own, theirs))
    await _carry_out(sock, lambda: sock.send(_proof(secret, b"driver", own, theirs)))


def _proof(secret: bytes, role: bytes, drivers: bytes, nodes: bytes) -> bytes:
    return hmac.digest(secret, role + drivers + nodes, hashlib.sha256)


def _check(given: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(given, expected):
        raise ConnectionError("the other end does not know the secret")


async def _encrypted(
    sock: socket.socket, context: ssl.SSLContext | None, *, server: bool
) -> socket.socket:
    """Return the socket, with TLS on it if there is a context."""
    if context is None:
        return sock
    with _closed_on_error(sock):
        wrapped = context.wrap_socket(sock, server_side=server, do_handshake_on_connect=False)
    with _closed_on_error(wrapped):
        await _carry_out(wrapped, wrapped.do_handshake)
        return wrapped


async def _read(sock: socket.socket, size: int) -> bytes:
    """Return exactly so many bytes."""
    data = bytearray()

    def receive() -> bytes:
        return sock.recv(size - len(data))

    while len(data) < size:
        part = await _carry_out(sock, receive)
        if not part:
            raise ConnectionError("the other end closed the connection")
        data += part
    return bytes(data)


async def _carry_out(sock: socket.socket, action: Callable[[], T]) -> T:
    """Call a method of a socket that does not block, again once the socket is ready."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return action()
        except ssl.SSLWantWriteError:
            watch, unwatch = loop.add_writer, loop.remove_writer
        except (BlockingIOError, ssl.SSLWantReadError):  # what is sent here always fits
            watch, unwatch = loop.add_reader, loop.remove_reader
        ready = asyncio.Event()
        watch(sock.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            unwatch(sock.fileno())


@contextlib.contextmanager
def _closed_on_error(sock: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        sock.close()
        raise


def tls(*, server: bool) -> ssl.SSLContext | None:
    """Return what encrypts the connection, if Ray's own are encrypted (RAY_USE_TLS=1)."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION  # a write never has to wait for something to read
    context.check_hostname = False  # as Ray: the authority signs for the fleet alone
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
    context.load_verify_locations(os.environ["RAY_TLS_CA_CERT"])
    return context


class NodeListener:
    """Calls `welcome` with the socket of each driver that has proved itself.

    SECURITY: any process that reaches the port can connect; each connection has a descriptor and a
    task. Above MAX_STRANGERS the oldest without a proof goes: a driver proves itself in
    milliseconds, while one that sends nothing stays.
    """

    def __init__(self, secret: bytes, welcome: Callable[[socket.socket], None]) -> None:
        self._secret, self._welcome = secret, welcome
        self._listener = SocketListener(self._on_connect)
        self._strangers: dict[asyncio.Task[None], None] = {}
        self._background = Background(_LOG)
        self._tls: ssl.SSLContext | None = None

    def start(self, address: str) -> int:
        """Listen at an address of this machine; return the port."""
        self._tls = tls(server=True)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family)
        self._listener.start(listener)
        return int(listener.getsockname()[1])

    def close(self) -> None:
        """Take no more connections, and end those without a proof."""
        self._listener.close()
        for task in self._strangers:
            task.cancel()

    def _on_connect(self, sock: socket.socket) -> None:
        if len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            self._forget(oldest)
            oldest.cancel()
        task = self._background.spawn(self._examine(sock), shared=True)
        self._strangers[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)

    async def _examine(self, sock: socket.socket) -> None:
        with _closed_on_error(sock):
            try:
                admitted = await admit(sock, self._secret, self._tls)
            except (OSError, TimeoutError) as exc:
                sock.close()
                _LOG.info("refused a connection: %s", exc or "no handshake in time")
                return
        self._welcome(admitted)
