"""One end of the conversation between a driver and a node: requests, replies and notifications.

The same conversation as on the daemon's socket (`wire.peer`), as plain messages with bytes beside
them. The link that holds a peer moves what `take` returns to the other end, in its order.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from atoll.errors import BusyError, ConfigError, SandboxError, SandboxLostError
from atoll.fleet import frames
from atoll.guest.shared import rpc
from atoll.rpc import faults
from atoll.rpc.connection import Reply
from atoll.rpc.passed_fds import PassedFds, close_all
from atoll.sandbox.wire import blobs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from atoll.fleet.frames import Buffer, Message

    Serve = Callable[[str, dict[str, Any], PassedFds], Awaitable[Reply]]
    Hear = Callable[[str, dict[str, Any]], None]


class PassedBytes(PassedFds):
    """Bytes that came beside a message; memory files are made of those that are asked for so."""

    def __init__(self, data: list[Buffer]) -> None:
        super().__init__()
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def take(self) -> int:
        """Return the next ones in a memory file; ConfigError if there are none."""
        return blobs.write(self.take_buffer())

    def take_bytes(self) -> bytes:
        """Return the next ones; ConfigError if there are none."""
        return bytes(self.take_buffer())

    def take_buffer(self) -> Buffer:
        """Return the next ones, large ones as a view; ConfigError if there are none."""
        if not self._data:
            raise ConfigError("bytes were announced and did not come")
        return self._data.pop(0)

    def hand_over(self) -> list[int]:
        """Return all that are left as memory files, which the caller closes."""
        return [blobs.write(one) for one in self.take_all()]

    def take_all(self) -> list[Buffer]:
        """Return all that are left."""
        left, self._data = self._data, []
        return left

    def close(self) -> None:
        """Forget what is left."""
        self._data = []


CROWDED = 8 << 20
"""Bytes that wait to be sent above which a call or a reply waits too (back-pressure)."""
MAX_UNREAD = 64 << 20
"""Bytes of notifications that may wait while the other end does not read; more end the link."""
MOST_CALLS = 8192
"""Requests of the other end that run at one time; more are refused."""


class LinkLostError(SandboxLostError):
    """The other end has gone: whether it carried out what it was asked is not known."""


class MessagePeer:
    """Calls the other end, and serves its calls. `on_post` is told that a message waits.

    SECURITY: guests make the messages, and the other end may be slow or stopped. What waits to be
    sent is bounded: calls and replies wait for room, and `on_flood` ends a link that notifications
    would fill.
    """

    def __init__(
        self, serve: Serve, hear: Hear, on_post: Callable[[], None], on_flood: Callable[[], None]
    ) -> None:
        self._serve, self._hear, self._on_post = serve, hear, on_post
        self._on_flood = on_flood
        self._queued = self._unread = 0
        self._crowded = False
        self._room = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._count = 0
        self._outgoing: list[Buffer] = []
        self.ended = ""
        """Why it has ended; empty while it lives."""

    async def call(
        self,
        method: str,
        params: dict[str, Any],
        fds: list[int] | None = None,
        beside: Sequence[Buffer] | None = None,
    ) -> Reply:
        """Send a request with what is in the memory files `fds`, or `beside`; return the reply."""
        try:
            await self._wait_for_room()
        except BaseException:
            close_all(fds or [])
            raise
        beside = _read_all(fds or []) if beside is None else beside
        if self.ended:
            raise LinkLostError(self.ended)
        self._count += 1
        ident = self._count
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[ident] = answer
        try:
            self._post({"id": ident, "method": method, "params": params}, beside)
            return await answer
        except asyncio.CancelledError:
            self._post({"cancel": ident})
            raise
        finally:
            self._waiting.pop(ident, None)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification."""
        self._post({"method": method, "params": params})
        if self._crowded and self._unread > MAX_UNREAD:
            self._on_flood()

    def deliver(self, message: Message) -> None:
        """Take a message from the other end."""
        if "cancel" in message:
            if (task := self._running.get(message["cancel"])) is not None:
                task.cancel()
        elif "method" not in message:
            self._settle(message)
        elif "id" in message:
            ident = message["id"]
            if ident in self._running:
                raise ValueError("two requests have one id")
            if len(self._running) >= MOST_CALLS:
                self._refuse(ident, BusyError(f"more than {MOST_CALLS:,} calls at one time"))
                return
            task = asyncio.get_running_loop().create_task(self._respond(message))
            self._running[ident] = task
            task.add_done_callback(lambda _: self._running.pop(ident, None))
        else:
            self._hear(message["method"], message["params"])

    def take(self) -> list[Buffer]:
        """Return what waits to be sent, and forget it."""
        taken, self._outgoing, self._queued = self._outgoing, [], 0
        if not self._crowded:
            self._room.set()
        return taken

    def crowd(self, *, crowded: bool) -> None:
        """Note whether the other end does not read what it was sent."""
        self._crowded = crowded
        if not crowded:
            self._unread = 0
            self._room.set()

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
        self._outgoing.clear()
        self._room.set()

    async def _wait_for_room(self) -> None:
        """Wait until what was posted before has mostly been sent, or the link has ended."""
        while not self.ended and (self._crowded or self._queued > CROWDED):
            self._room.clear()
            await self._room.wait()

    def _post(self, message: Message, beside: Sequence[Buffer] = ()) -> None:
        if self.ended:
            return
        try:
            parts = frames.encode(message, beside)
        except ValueError as exc:
            raise SandboxError(str(exc)) from None
        self._outgoing += parts
        size = sum(map(len, parts))
        self._queued += size
        self._unread += size if self._crowded else 0
        self._on_post()

    def _settle(self, message: Message) -> None:
        answer = self._waiting.get(message["id"])
        if answer is None or answer.done():
            return  # its caller has left
        if "error" in message:
            answer.set_exception(faults.from_wire(message["error"]))
        else:
            answer.set_result(Reply(message["result"], PassedBytes(message["blobs"])))

    async def _respond(self, message: Message) -> None:
        ident, passed_fds = message["id"], PassedBytes(message["blobs"])
        try:
            reply = await self._serve(message["method"], message["params"], passed_fds)
            await self._wait_for_room()
            self._post({"id": ident, "result": reply.value}, _all_bytes(reply.passed_fds))
        except Exception as exc:  # noqa: BLE001 - whatever it is, the asker is told
            await self._wait_for_room()
            self._refuse(ident, exc)
        finally:
            passed_fds.close()

    def _refuse(self, ident: int, exc: Exception) -> None:
        self._post({"id": ident, "error": rpc.decode(faults.to_wire(str(ident), exc))["error"]})


def _all_bytes(passed: PassedFds) -> Sequence[Buffer]:
    """Return what is beside a reply, without a memory file if it is bytes."""
    if isinstance(passed, PassedBytes):
        return passed.take_all()
    return _read_all(passed.hand_over())


def _read_all(fds: list[int]) -> list[bytes]:
    """Return what is in memory files, which are closed."""
    if not fds:
        return []
    left = list(fds)
    try:
        return [blobs.read(left.pop(0)) for _ in fds]
    finally:
        close_all(left)
