"""The host's end of a sandbox's private channel: JSON-RPC 2.0 with a peer that may be hostile."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import termios
from functools import partial
from typing import TYPE_CHECKING, Any

from atoll.guest.shared import rpc
from atoll.rpc.passed_fds import close_all
from atoll.rpc.peer import JsonRpcPeer, Outbox
from atoll.sandbox.bridge import CallFailedError
from atoll.sandbox.result_fields import printable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from atoll.rpc.peer import Wake

    OnCall = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
    OnOutput = Callable[[int, bytes], None]

MAX_AT_ONCE = 64
"""Calls that are worked on: each may have an answer of megabytes."""
MAX_OUTBOX = 1 << 20
MAX_CALL_BYTES = 64 << 20
"""What the guest's open calls may take here together."""


class ChannelEndedError(Exception):
    """The channel ended before an answer came: the guest died, or broke the protocol."""

    def __init__(self, violation: str | None = None, *, fault: str | None = None) -> None:
        """`violation`: what the guest did wrong. `fault`: why the host cannot go on with it."""
        self.violation, self.fault = violation, fault
        super().__init__(violation or fault or "the guest has gone")


class RemoteError(Exception):
    """The guest refused a request."""


class HostChannel(JsonRpcPeer):
    """Requests to the guest, and the guest's calls to the host, over two pipes."""

    def __init__(self, read_fd: int, write_fd: int, on_call: OnCall | None = None) -> None:
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)
        super().__init__(read_fd)
        self._read_fd, self._write_fd = read_fd, write_fd
        self.on_call: OnCall = on_call or _refuse
        self.on_output: OnOutput | None = None
        """Where what the guest prints goes if it comes as messages, by stream."""
        send = partial(os.write, write_fd)
        self._outbox = Outbox(write_fd, send, self._cannot_write, self._listen_again)
        self._reading_paused = self._resting = False
        self._call_slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._call_bytes = 0
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._left_waiting = False
        """Whether a request was not answered when it ended."""
        self.unread = False
        """Whether it has ended before the guest had read any of the requests that waited."""

    def request(
        self, method: str, params: Mapping[str, Any], wake: Wake | None = None
    ) -> asyncio.Future[Any]:
        """Ask the guest; the answer, or ChannelEndedError if none will come.

        `wake` ends with the answer: a task that awaits it goes on in the same turn of the loop.
        """
        _, line, answer = self._expect(method, params)
        outbox = self._outbox
        answer.wake, answer.bytes_before = wake, outbox.written + outbox.size
        if self._ended:
            self.unread |= not self._left_waiting
            answer.fail(self._ended)
        else:
            outbox.put(line, [])
            if outbox.size > MAX_OUTBOX:
                self._stop_listening()  # it asks and does not read
        return answer

    def send_bytes(self, data: bytes) -> None:
        """Write raw bytes outside JSON-RPC, to a peer that expects them."""
        if not self._ended:
            self._outbox.put(data, [])

    async def drained(self) -> None:
        """Wait until all that was to be written is; also when nothing will be any more."""
        await self._outbox.wait_for_room()

    def close(self) -> None:
        """Let go of both pipes."""
        if self._read_fd < 0:
            return
        self.end(ChannelEndedError())
        close_all((self._read_fd, self._write_fd))
        self._read_fd = self._write_fd = -1

    def end(self, why: ChannelEndedError) -> None:
        """End the channel; all waiting requests fail with `why`."""
        if self._ended:
            return
        self._loop.remove_reader(self._read_fd)
        # Not whether anything is unread: it may be the answer to a call of the cell, which ran.
        read = self._outbox.written - bytes_in_pipe(self._write_fd)
        self._left_waiting = bool(self._waiting)
        self.unread = self._left_waiting and all(
            answer.bytes_before >= read for answer in self._waiting.values()
        )
        if not self.ready.done():
            self.ready.set_exception(why)
            self.ready.exception()  # asyncio logs an exception that was never read
        self._set_ended(why)
        self._outbox.close()

    def _received(self, data: bytes) -> None:
        self._call_bytes = self._call_bytes + len(data) if self.calls else 0
        if self._call_bytes > MAX_CALL_BYTES:
            self._stop_listening()  # it asks for more than we want to hold

    def _lose(self, violation: str | None) -> None:
        self.end(ChannelEndedError(violation))

    def _notified(self, method: str, params: dict[str, Any]) -> None:
        if method == "ready" and not self.ready.done():
            self.ready.set_result(None)
        elif method == "output" and self.on_output is not None:
            self.on_output(*_output(params))
        else:
            raise rpc.ProtocolError("an unexpected notification")

    def _refusal(self, error: dict[str, Any]) -> Exception:
        return RemoteError(printable(error["message"]))

    def _call_done(self, message: rpc.Message, _task: object) -> None:
        super()._call_done(message, _task)
        if not self.calls:
            self._call_bytes = 0
            self._listen_again()

    async def _answer_call(self, message: rpc.Message) -> None:
        ident = message["id"]
        async with self._call_slots:
            await self.drained()  # back-pressure: the guest has to drain its replies
            try:
                value = await self.on_call(message["method"], message.get("params", {}))
                line = rpc.result(ident, value)
            except CallFailedError as exc:
                line = rpc.error(ident, rpc.HOST_CALL_FAILED, str(exc), exc.data)
            except rpc.MessageTooLargeError as exc:
                line = rpc.error(ident, rpc.HOST_CALL_FAILED, str(exc))
            if not self._ended:
                self._outbox.put(line, [])
                if self._outbox.size > MAX_OUTBOX:
                    self._stop_listening()  # it asks and does not read

    def _cannot_write(self, exc: OSError) -> None:
        """End the channel: a request that was not written is not answered.

        A guest that closed its end may have answered before: the reader sees that, and the end.
        """
        if not isinstance(exc, BrokenPipeError):
            self.end(ChannelEndedError(fault=f"the host cannot write to it: {exc.strerror}"))

    def _stop_listening(self) -> None:
        """Hear no more until `_listen_again` finds that little is left to write and to work on."""
        if not self._reading_paused and not self._ended:
            self._reading_paused = True
            self._loop.remove_reader(self._read_fd)

    def _rest(self, seconds: float) -> None:
        self._resting = True
        self._stop_listening()
        self._loop.call_later(seconds, self._end_rest)

    def _end_rest(self) -> None:
        self._resting = False
        self._listen_again()

    def _listen_again(self) -> None:
        quiet = not self._outbox.size and not self._resting
        patient = quiet and self._call_bytes <= MAX_CALL_BYTES
        if self._reading_paused and patient and not self._ended:
            self._reading_paused = False
            self._loop.add_reader(self._read_fd, self._on_readable)


def _output(params: Mapping[str, Any]) -> tuple[int, bytes]:
    try:
        return int(params["stream"]), params["text"].encode("latin-1")
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise rpc.ProtocolError("output of no known shape") from None


def bytes_in_pipe(fd: int) -> int:
    """Return how many bytes of a pipe were not read; 0 if that is not known."""
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
    except OSError:
        return 0


async def _refuse(_method: str, _params: Mapping[str, Any]) -> Any:
    raise CallFailedError("the host does not accept calls yet")
