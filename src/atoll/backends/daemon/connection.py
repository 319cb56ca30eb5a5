"""Connections to the daemon: found, checked, and shared by all sandboxes of one event loop."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import weakref
from typing import TYPE_CHECKING, Any

from atoll.config import on_windows
from atoll.errors import BackendUnavailableError, BusyError, SandboxError
from atoll.guest.shared import rpc
from atoll.rpc import peer_check
from atoll.rpc.connection import Peer, PeerOptions
from atoll.rpc.passed_fds import Reply
from atoll.sandbox.bridge import CallFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from atoll.rpc.passed_fds import PassedFds

    OnLines = Callable[[str, list[Any]], None]
    OnCall = Callable[[str, dict[str, Any]], Awaitable[Any]]

HINT = "Type: atoll daemon start"
WINDOWS_HINT = "Run Atoll in WSL, or use the backend remote with a service on Linux"
CONNECT_SECONDS = 2.0
PING_SECONDS = 1.0
IDLE_SECONDS = 5.0
"""How long a connection without a sandbox is kept for the next one."""
SILENT_SECONDS = 10.0
"""How long a daemon that was asked something may say nothing at all, not even that it lives."""
MAX_SANDBOXES = 128
"""On one connection; the daemon allows twice as many."""


class DaemonConnection:
    """One connection. Sandboxes have names on it that its client chooses."""

    def __init__(self, sock: socket.socket, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._sandboxes: dict[str, tuple[OnLines, OnCall]] = {}
        self._numbers = itertools.count(1)
        self._users = 0
        self._last_use: asyncio.TimerHandle | None = None
        self.path = path
        self.facts: dict[str, Any] = {}
        options = PeerOptions(name="the daemon", silent_seconds=SILENT_SECONDS)
        self.peer = Peer(sock, self._serve, self._on_notification, lambda _: None, options)
        weakref.finalize(self, sock.close)  # its loop may end without a word to us

    @property
    def has_room(self) -> bool:
        """Whether one more sandbox may use it."""
        return not self.peer.ended and self._users < MAX_SANDBOXES

    def hold(self) -> str:
        """Return a name for one more sandbox on this connection; `let_go` releases it."""
        self._users += 1
        if self._last_use is not None:
            self._last_use.cancel()
            self._last_use = None
        return str(next(self._numbers))

    def register(self, session: str, on_lines: OnLines, on_call: OnCall) -> None:
        """Call these with a sandbox's printed lines and its guest's calls."""
        self._sandboxes[session] = (on_lines, on_call)

    def let_go(self, session: str) -> None:
        """Release a sandbox; the connection closes IDLE_SECONDS after the last one."""
        self._sandboxes.pop(session, None)
        self._users -= 1
        if self._users == 0 and not self.peer.ended:
            self._last_use = self._loop.call_later(IDLE_SECONDS, self.peer.end, "idle")

    async def ping(self) -> dict[str, Any]:
        """What the daemon says of itself; asked anew unless it was heard a moment ago."""
        if not self.facts or self._loop.time() - self.peer.heard > PING_SECONDS:
            answer = (await self.peer.call("stats", {})).value
            if not isinstance(answer, dict):
                raise SandboxError("the daemon's answer has no known shape")
            self.facts = answer
        return self.facts

    async def _serve(self, method: str, params: dict[str, Any], _passed_fds: PassedFds) -> Reply:
        session = str(params.get("session"))
        if session not in self._sandboxes:
            raise SandboxError("the daemon does not know this sandbox")
        try:
            return Reply(await self._sandboxes[session][1](method, params))
        except CallFailedError as exc:
            failure = SandboxError(str(exc))
            vars(failure)["tool_error"] = exc.data  # an error's fields cross the socket with it
            raise failure from None

    def _on_notification(self, method: str, params: dict[str, Any]) -> None:
        session = str(params.get("session"))
        if method == "closing":
            self.peer.end("the daemon was stopped, and the sandbox with it")
        elif method == "lines" and session in self._sandboxes:
            self._sandboxes[session][0](str(params.get("stream")), _texts(params.get("lines")))
        elif method == "output" and session in self._sandboxes:
            pieces = [_texts(piece, 2) for piece in _list(params.get("pieces"))]
            self._sandboxes[session][0]("output", pieces)


def _texts(value: Any, count: int | None = None) -> list[str]:
    result = _list(value)
    if not all(type(text) is str for text in result) or count not in (None, len(result)):
        raise rpc.ProtocolError("output of no known shape")
    return result


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise rpc.ProtocolError("output of no known shape")
    return value


_connections: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[DaemonConnection]] = (
    weakref.WeakKeyDictionary()
)


async def shared(path: Path) -> DaemonConnection:
    """A connection of this event loop with room for one more sandbox."""
    connections = _connections.setdefault(asyncio.get_running_loop(), [])
    connections[:] = [connection for connection in connections if not connection.peer.ended]
    for connection in connections:
        if connection.path == path and connection.has_room:
            return connection
    connection = await connect(path)
    connections.append(connection)
    return connection


async def connect(path: Path) -> DaemonConnection:
    """A connection to the daemon at `path`; BackendUnavailableError if none is there."""
    if on_windows():
        raise _unavailable(f"no daemon answers at {path}: its sandboxes need Linux")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await _connect(sock, str(path))
        _check_listener(sock, path)
        return DaemonConnection(sock, path)
    except BaseException:
        sock.close()
        raise


async def ping(path: Path) -> dict[str, Any]:
    """What the daemon at `path` says of itself, on the connection that a sandbox will use."""
    try:
        async with asyncio.timeout(PING_SECONDS):
            connection = await shared(path)
            session = connection.hold()
            try:
                return await connection.ping()
            finally:
                connection.let_go(session)
    except TimeoutError:
        raise _unavailable(f"the daemon at {path} does not answer") from None


async def stats(path: Path) -> dict[str, Any]:
    """What the daemon at `path` says of itself, on a connection of its own."""
    try:
        async with asyncio.timeout(PING_SECONDS):
            connection = await connect(path)
            try:
                return await connection.ping()
            finally:
                connection.peer.end("asked")
    except TimeoutError:
        raise _unavailable(f"the daemon at {path} does not answer") from None


def hint() -> str:
    """Return what to do if no daemon answers."""
    return WINDOWS_HINT if on_windows() else HINT


async def _connect(sock: socket.socket, path: str) -> None:
    end = asyncio.get_running_loop().time() + CONNECT_SECONDS
    while True:
        try:
            sock.connect(path)
        except BlockingIOError:  # too many are waiting to be let in
            if asyncio.get_running_loop().time() > end:
                raise BusyError("the daemon takes no more connections now") from None
            await asyncio.sleep(0.01)
        except OSError as exc:
            raise _unavailable(f"no daemon answers at {path}: {exc.strerror or exc}") from None
        else:
            return


def _check_listener(sock: socket.socket, path: Path) -> None:
    """SECURITY: send nothing before it is known that the listener is a daemon of this user."""
    try:
        os.close(peer_check.check(sock))
    except peer_check.RefusedError as exc:
        raise _unavailable(f"what listens at {path} is not your daemon: {exc}") from None


def _unavailable(reason: str) -> BackendUnavailableError:
    return BackendUnavailableError("daemon", reason, hint())
