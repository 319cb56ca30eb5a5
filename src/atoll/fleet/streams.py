"""Connections with ports of a session on a fleet: what a user's process calls, what its node does.

    caller ── socket pair ── relay ══ "stream" requests ══ driver ══ node ──▶ server in the guest

Each direction has one request under way, so a side that does not read slows the other down.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.concurrency.background import both_ways
from atoll.errors import AtollError, BusyError, SandboxError
from atoll.rpc.passed_fds import PassedFds, Reply
from atoll.sandbox import verbs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from atoll.hosting.sessions import Session
    from atoll.rpc.connection import Items, Params

    Ask = Callable[[str, Params, Items], Awaitable[Reply]]

CHUNK = 1 << 18
WAIT_SECONDS = 2.0
"""For how long one request waits for bytes: a session is moved between requests."""
MAX_STREAMS = 512
"""Of one session."""
UNUSED_SECONDS = 600.0


async def connect(ask: Ask, port: int) -> tuple[socket.socket, Coroutine[None, None, None]]:
    """Return a socket that is connected with a port, and the relay to run meanwhile."""
    stream = secrets.token_hex(8)
    await ask("stream", {"operation": "open", "stream": stream, "port": port}, [])
    ours, theirs = socket.socketpair()
    return ours, _relay(ask, stream, theirs)


async def _relay(ask: Ask, stream: str, local: socket.socket) -> None:
    """Carry bytes both ways until both have ended, or one side is gone."""
    local.setblocking(False)
    loop = asyncio.get_running_loop()

    async def up() -> None:
        while data := await loop.sock_recv(local, CHUNK):
            await ask("stream", {"operation": "write", "stream": stream}, [data])
        await ask("stream", {"operation": "end", "stream": stream}, [])

    async def down() -> None:
        while True:
            reply = await ask("stream", {"operation": "read", "stream": stream}, [])
            if reply.value.get("end"):
                local.shutdown(socket.SHUT_WR)
                return
            if reply.passed_fds:
                await loop.sock_sendall(local, reply.passed_fds.take_bytes())

    try:
        await both_ways(up(), down())
    except (OSError, AtollError):
        pass  # the caller, the server or the session has gone
    finally:
        local.close()
        with contextlib.suppress(AtollError):  # it ends with its session
            await ask("stream", {"operation": "close", "stream": stream}, [])


@dataclass(slots=True)
class _Stream:
    server: socket.socket
    used: float = field(default_factory=time.monotonic)


class NodeStreams:
    """The connections with ports of a node's sessions."""

    def __init__(self) -> None:
        self._streams: dict[Session, dict[str, _Stream]] = {}

    async def request(self, session: Session, params: Params, fds: PassedFds) -> Reply:
        """Carry out an operation; bytes are beside the request and the reply."""
        operation, ident = str(params.get("operation")), str(params.get("stream"))
        if operation == "open":
            await self._open(session, ident, verbs.Connect.read(params))
            return Reply({})
        stream = self._streams.get(session, {}).get(ident)
        if stream is None:
            raise SandboxError("the connection has ended")
        stream.used = time.monotonic()
        loop = asyncio.get_running_loop()
        try:
            if operation == "read":
                return await _read(stream.server)
            if operation == "write":
                await loop.sock_sendall(stream.server, fds.take_bytes())
            elif operation == "end":
                stream.server.shutdown(socket.SHUT_WR)
            else:
                self._streams[session].pop(ident).server.close()
        except OSError as exc:
            raise SandboxError(f"the connection has ended: {exc}") from None
        return Reply({})

    def forget(self, session: Session) -> None:
        """Close the connections of a session that ends here."""
        for stream in self._streams.pop(session, {}).values():
            stream.server.close()

    def sweep(self) -> None:
        """Close connections that no client asks for, and those of ended sessions."""
        now = time.monotonic()
        for session, streams in list(self._streams.items()):
            for ident, stream in list(streams.items()):
                if session.over or now - stream.used > UNUSED_SECONDS:
                    streams.pop(ident).server.close()
            if not streams:
                del self._streams[session]

    async def _open(self, session: Session, ident: str, request: verbs.Connect) -> None:
        server = await session.carry_out(request)
        server.setblocking(False)
        streams = self._streams.setdefault(session, {})  # now: others may have begun meanwhile
        if len(streams) >= MAX_STREAMS or ident in streams:
            server.close()
            raise BusyError(f"a session has at most {MAX_STREAMS} connections with its ports")
        streams[ident] = _Stream(server)


async def _read(server: socket.socket) -> Reply:
    """Return the next bytes, `end` at the end, or neither if none come for a while."""
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            data = await asyncio.get_running_loop().sock_recv(server, CHUNK)
    except TimeoutError:
        return Reply({})
    return Reply({}, PassedFds([data])) if data else Reply({"end": True})
