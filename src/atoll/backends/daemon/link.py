"""A client's connection to the daemon: found, checked, shared by the sandboxes forked off it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

from atoll.bridge import CallFailedError
from atoll.errors import BackendUnavailableError, BusyError, SandboxError
from atoll.wire.peer import Answer, Peer, credentials

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from atoll.wire.blobs import Gifts

    OnLines = Callable[[str, list[str]], None]
    OnCall = Callable[[str, dict[str, Any]], Awaitable[Any]]

HINT = "Type: atoll daemon start"
CONNECT_SECONDS = 2.0
PING_SECONDS = 1.0


class Link:
    """One connection. Sandboxes register under the daemon's names for them."""

    def __init__(self, sock: socket.socket) -> None:
        self._sandboxes: dict[str, tuple[OnLines, OnCall]] = {}
        self.peer = Peer(sock, self._serve, self._hear, lambda _: None)

    def register(self, session: str, on_lines: OnLines, on_call: OnCall) -> None:
        """Hand what concerns a session to these."""
        self._sandboxes[session] = (on_lines, on_call)

    def release(self, session: str) -> None:
        """A session is over; with the last one the connection is."""
        self._sandboxes.pop(session, None)
        if not self._sandboxes:
            self.peer.end("the sandbox has been destroyed")

    async def _serve(self, method: str, params: dict[str, Any], _gifts: Gifts) -> Answer:
        session = str(params.get("session"))
        if session not in self._sandboxes:
            raise SandboxError("no such sandbox here")
        try:
            return Answer(await self._sandboxes[session][1](method, params))
        except CallFailedError as exc:
            raise SandboxError(str(exc)) from None

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        session = str(params.get("session"))
        if method == "closing":
            self.peer.end("the daemon was stopped, and the sandbox with it")
        elif method == "lines" and session in self._sandboxes:
            self._sandboxes[session][0](str(params.get("stream")), params.get("lines") or [])


async def connect(path: Path) -> Link:
    """A connection to the daemon at `path`; BackendUnavailableError if none is there."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await _connect(sock, str(path))
        _check_user(sock, path)
        return Link(sock)
    except BaseException:
        sock.close()
        raise


async def ask(path: Path, method: str) -> dict[str, Any]:
    """The daemon's answer to a question about itself, on a connection of its own."""
    async with _visit(path) as link:
        answer = (await link.peer.call(method, {})).value
    if not isinstance(answer, dict):
        raise SandboxError("the daemon's answer has no known shape")
    return answer


@contextlib.asynccontextmanager
async def _visit(path: Path) -> AsyncIterator[Link]:
    try:
        async with asyncio.timeout(PING_SECONDS):
            link = await connect(path)
            try:
                yield link
            finally:
                link.peer.end("asked")
    except TimeoutError:
        raise _unavailable(f"the daemon at {path} does not answer") from None


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


def _check_user(sock: socket.socket, path: Path) -> None:
    """SECURITY: code and data go to a process of ours, whoever put a socket there."""
    _, uid = credentials(sock)
    if uid != os.geteuid():
        raise _unavailable(f"{path} is of user {uid}, not of you")


def _unavailable(reason: str) -> BackendUnavailableError:
    return BackendUnavailableError("daemon", reason, HINT)
