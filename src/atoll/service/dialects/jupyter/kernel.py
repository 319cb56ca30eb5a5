"""One kernel: a session, the sockets that hear of it, and the requests that wait for their turn.

Requests of the shell channel are answered one after another, by one task for each kernel; those
of the control channel at once. What is published goes to every socket, an answer to the one that
asked. A cell goes on when its socket is lost; what it shows then is kept for the next socket.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from atoll.service.dialects.jupyter import cells
from atoll.service.dialects.jupyter.cell_messages import Past
from atoll.service.dialects.jupyter.messages import KernelMessage, header
from atoll.service.http.problems import Problem, encode, of_error
from atoll.text.amounts import iso_time

if TYPE_CHECKING:
    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.core.tenant_session import HostedSession

MAX_WAITING = 256
"""Requests that wait for their turn; then the kernel stops reading from its sockets."""
MAX_MISSED_BYTES = 4 << 20
"""What is kept for the next socket while there is none; the oldest is forgotten first."""
MAX_SOCKETS = 32
_LOG = logging.getLogger("atoll.service")


class Listener(Protocol):
    """A socket, as a kernel uses it."""

    principal: Principal

    async def send(self, message: KernelMessage) -> bool:
        """Send a message; return False if the client is gone."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close the connection."""


class KernelInfo(Struct):
    """A kernel as Jupyter's REST interface shows it."""

    id: str
    name: str
    last_activity: str
    execution_state: str
    connections: int


class Kernel:
    """A session as Jupyter's clients see it."""

    def __init__(self, service: Service, hosted: HostedSession, name: str) -> None:
        self.id, self.name, self.service, self.hosted = str(uuid.uuid4()), name, service, hosted
        self.session = uuid.uuid4().hex
        """Jupyter's own word for who sent a message: new after each restart."""
        self.state, self.count, self.past = "idle", 0, Past()
        self.sockets: set[Listener] = set()
        self._waiting: asyncio.Queue[tuple[Listener, KernelMessage]] = asyncio.Queue(MAX_WAITING)
        self._missed: deque[tuple[int, KernelMessage]] = deque()
        self._held = service.memory.admit(hosted.tenant, 0, "messages that no socket has heard")
        self._worker: asyncio.Task[None] | None = None

    def describe(self) -> KernelInfo:
        """Return the model of Jupyter's REST interface."""
        used = iso_time(self.hosted.used)
        return KernelInfo(self.id, self.name, used, self.state, len(self.sockets))

    async def attach(self, socket: Listener) -> None:
        """Publish to this socket too; first what no socket has heard."""
        if len(self.sockets) >= MAX_SOCKETS:
            raise Problem(429, "rate_limited", f"a kernel has at most {MAX_SOCKETS} sockets")
        self.sockets.add(socket)
        while self._missed:
            size, message = self._missed.popleft()
            self._held.shrink(size)
            await socket.send(message)

    def detach(self, socket: Listener) -> None:
        """Stop publishing to this socket."""
        self.sockets.discard(socket)

    async def take(self, socket: Listener, message: KernelMessage) -> None:
        """Answer a request, at once or in its turn."""
        if message.channel == "control":
            await self._answer(socket, message)
            self._done(message)
        elif message.channel == "shell":
            if self._worker is None:
                self._worker = asyncio.get_running_loop().create_task(self._work())
            await self._waiting.put((socket, message))

    async def publish(self, parent: KernelMessage | None, kind: str, content: Any) -> None:
        """Send a message to all sockets."""
        message = KernelMessage("iopub", header(kind, self.session), content)
        if parent is not None:
            message.parent_header = parent.header
        heard = [await socket.send(message) for socket in list(self.sockets)]
        if not any(heard):
            self._missed.append((len(encode(content)), message))
            while not self._fits_missed():
                self._missed.popleft()

    def _fits_missed(self) -> bool:
        """Return whether there is room for the messages that no socket has heard."""
        size = sum(size for size, _ in self._missed)
        return size <= MAX_MISSED_BYTES and self._held.fits(size)

    async def interrupt(self) -> None:
        """Interrupt the cell that runs."""
        await self.hosted.session.cancel()

    async def restart(self) -> None:
        """Throw the session's variables and files away, and what waits for its turn."""
        await self.interrupt()
        await self.abort()
        await self.publish(None, "status", {"execution_state": "restarting"})
        config = dataclasses.replace(self.hosted.session.config, state=None)
        await self.service.sessions.restart(self.hosted, config)
        self.count, self.past, self.session = 0, Past(), uuid.uuid4().hex
        await self.publish(None, "status", {"execution_state": "idle"})

    async def abort(self) -> None:
        """Answer the cells that wait for their turn with `aborted`; other requests wait on."""
        for _ in range(self._waiting.qsize()):
            socket, message = self._waiting.get_nowait()
            if message.kind != "execute_request":
                self._waiting.put_nowait((socket, message))
                continue
            try:
                await self._status(message, "busy")
                await self._reply(socket, message, {"status": "aborted"})
                await self._status(message, "idle")
            finally:
                self._done(message)

    async def close(self) -> None:
        """Tell the sockets that the kernel has ended, and close them."""
        self.state = "dead"
        while not self._waiting.empty():
            self._done(self._waiting.get_nowait()[1])
        self._missed.clear()
        self._held.release()
        if self._worker is not None:
            self._worker.cancel()
        await self.publish(None, "status", {"execution_state": "dead"})
        for socket in list(self.sockets):
            await socket.close(1000, "the kernel has ended")

    async def _work(self) -> None:
        while True:
            socket, message = await self._waiting.get()
            self.state = "busy"
            try:
                failed = await self._answer(socket, message)
            finally:
                self._done(message)
            if failed and message.content.get("stop_on_error", True):
                await self.abort()
            self.state = "idle"

    async def _answer(self, socket: Listener, message: KernelMessage) -> bool:
        """Answer one request; return whether it was a cell that failed."""
        answer = cells.ANSWERS.get(message.kind)
        if answer is None:  # comms and debuggers, which no kernel of ours has
            return False
        await self._status(message, "busy")
        try:
            content = await answer(self, self._principal(socket, message), message)
        except Exception as exc:  # noqa: BLE001 - the edge: every request has an answer
            problem = of_error(exc)
            if problem.status == 500:
                _LOG.error("%s failed", message.kind[:60], exc_info=exc)
            content = await cells.refused(self, message, problem)
        await self._reply(socket, message, content)
        await self._status(message, "idle")
        return message.kind == "execute_request" and content["status"] == "error"

    @staticmethod
    def _done(message: KernelMessage) -> None:
        """Stop holding a message: it was answered, or never will be."""
        if message.held is not None:
            message.held.release()

    def _principal(self, socket: Listener, message: KernelMessage) -> Principal:
        """Return who asks, if the key is valid still and may ask so much."""
        principal = self.service.keys.of_id(socket.principal.key)
        principal.require("execute")
        self.service.quotas.request(principal)
        if message.kind == "execute_request":
            self.service.require_accepting()
        return principal

    async def _reply(self, socket: Listener, message: KernelMessage, content: Any) -> None:
        kind = message.kind.replace("_request", "_reply")
        await socket.send(message.answer(message.channel, kind, content, self.session))

    async def _status(self, message: KernelMessage, state: str) -> None:
        await self.publish(message, "status", {"execution_state": state})
