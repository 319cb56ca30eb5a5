"""One end of the exchange between a driver and a node: requests, replies and notifications.

The same conversation as on the daemon's socket (`wire.peer`), as plain messages with bytes beside
them: whoever holds a peer moves what is in `outgoing` to the other end, in its order.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxLostError
from atoll.guest import rpc
from atoll.passed_fds import PassedFds, close_all
from atoll.wire import blobs, faults
from atoll.wire.peer import Reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Message = dict[str, Any]
    Serve = Callable[[str, dict[str, Any], PassedFds], Awaitable[Reply]]
    Hear = Callable[[str, dict[str, Any]], None]


CROWD = 4
GATHER_SECONDS = 0.002


class LinkLostError(SandboxLostError):
    """The other end has gone: whether it carried out what it was asked is not known."""


class Gathering:
    """Runs `flush` once after messages were posted: at once, or a moment later if many are busy.

    A batch costs about as much as a message, so a crowd of them is faster together.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush, self._planned = flush, False

    def plan(self, busy: int) -> None:
        """Flush after this turn of the loop; a bit later if `busy` calls are under way."""
        if self._planned:
            return
        self._planned = True
        loop = asyncio.get_running_loop()
        if busy > CROWD:
            loop.call_later(GATHER_SECONDS, self._run)
        else:
            loop.call_soon(self._run)

    def _run(self) -> None:
        self._planned = False
        self._flush()


class MessagePeer:
    """Calls the other end, and serves its calls. `on_post` is told that a message waits."""

    def __init__(self, serve: Serve, hear: Hear, on_post: Callable[[], None]) -> None:
        self._serve, self._hear, self._on_post = serve, hear, on_post
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._count = 0
        self.outgoing: list[Message] = []
        self.ended = ""
        """Why it has ended; empty while it lives."""

    async def call(
        self, method: str, params: dict[str, Any], fds: list[int] | None = None
    ) -> Reply:
        """Send a request with what is in the memory files `fds`; return the reply."""
        beside = _read_all(fds or [])
        if self.ended:
            raise LinkLostError(self.ended)
        self._count += 1
        ident = self._count
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[ident] = answer
        self._post({"id": ident, "method": method, "params": params, "blobs": beside})
        try:
            return await answer
        except asyncio.CancelledError:
            self._post({"cancel": ident})
            raise
        finally:
            self._waiting.pop(ident, None)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification."""
        self._post({"method": method, "params": params})

    def deliver(self, message: Message) -> None:
        """Take a message from the other end."""
        if "cancel" in message:
            if (task := self._running.get(message["cancel"])) is not None:
                task.cancel()
        elif "method" not in message:
            self._settle(message)
        elif "id" in message:
            ident = message["id"]
            task = asyncio.get_running_loop().create_task(self._respond(message))
            self._running[ident] = task
            task.add_done_callback(lambda _: self._running.pop(ident, None))
        else:
            self._hear(message["method"], message["params"])

    @property
    def busy(self) -> int:
        """Calls that wait for an answer, and requests that run."""
        return len(self._waiting) + len(self._running)

    def take(self) -> list[Message]:
        """Return what waits to be sent, and forget it."""
        taken, self.outgoing = self.outgoing, []
        return taken

    def end(self, why: str) -> None:
        """Fail the calls that wait, and cancel the requests that run."""
        if self.ended:
            return
        self.ended = why
        for task in list(self._running.values()):
            task.cancel()
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(LinkLostError(why))
                answer.exception()  # its caller may have left: that is no fault
        self.outgoing.clear()

    def _post(self, message: Message) -> None:
        if not self.ended:
            self.outgoing.append(message)
            self._on_post()

    def _settle(self, message: Message) -> None:
        answer = self._waiting.get(message["id"])
        if answer is None or answer.done():
            return  # its caller has left
        if "error" in message:
            answer.set_exception(faults.from_wire(message["error"]))
        else:
            answer.set_result(Reply(message["result"], _write_all(message["blobs"])))

    async def _respond(self, message: Message) -> None:
        ident, passed_fds = message["id"], _write_all(message["blobs"])
        try:
            reply = await self._serve(message["method"], message["params"], passed_fds)
            beside = _read_all(reply.passed_fds.hand_over())
            self._post({"id": ident, "result": reply.value, "blobs": beside})
        except Exception as exc:  # noqa: BLE001 - whatever it is, the asker is told
            error = rpc.decode(faults.to_wire(str(ident), exc))["error"]
            self._post({"id": ident, "error": error})
        finally:
            passed_fds.close()


def _write_all(beside: list[bytes]) -> PassedFds:
    return PassedFds(map(blobs.write, beside))


def _read_all(fds: list[int]) -> list[bytes]:
    """Return what is in memory files, which are closed."""
    left = list(fds)
    try:
        return [blobs.read(left.pop(0)) for _ in fds]
    finally:
        with contextlib.suppress(OSError):
            close_all(left)
