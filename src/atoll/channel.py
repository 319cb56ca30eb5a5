"""The host's end of a sandbox's private channel: JSON-RPC 2.0 with a peer that may be hostile."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any

from atoll.bridge import CallFailedError
from atoll.guest import rpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    OnCall = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
    OnOutput = Callable[[int, bytes], None]

CHUNK = 1 << 16
MAX_OPEN_CALLS = 1024
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


class _Answer(asyncio.Future[Any]):
    """An answer on its way."""

    wake: asyncio.Future[Any] | None = None
    """What else ends with the answer."""

    def come(self, value: Any) -> None:
        """Set the result."""
        if not self.done():
            self.set_result(value)
            if self.wake is not None and not self.wake.done():
                self.wake.set_result(None)

    def fail(self, why: Exception) -> None:
        """Set the exception, also where no caller awaits this request any more."""
        if not self.done():
            self.set_exception(why)
            self.exception()  # asyncio logs an exception that was never read
            if self.wake is not None and not self.wake.done():
                self.wake.set_result(None)


class HostChannel:
    """Requests to the guest, and the guest's calls to the host, over two pipes.

    SECURITY: request ids are random, so an answer cannot be forged blindly; anything that is not
    a well-formed, awaited message ends the channel for good.
    """

    def __init__(self, read_fd: int, write_fd: int, on_call: OnCall | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._read_fd, self._write_fd = read_fd, write_fd
        self.on_call: OnCall = on_call or _refuse
        self.on_output: OnOutput | None = None
        """Where what the guest prints goes if it comes as messages, by stream."""
        self._buffer, self._outbox = rpc.LineBuffer(), bytearray()
        self._waiting: dict[str, _Answer] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._ended: ChannelEndedError | None = None
        self._deaf = self._writing = False
        self._drained: set[asyncio.Future[None]] = set()
        self._hands = asyncio.Semaphore(MAX_AT_ONCE)
        self._call_bytes = 0
        self.ready: asyncio.Future[None] = self._loop.create_future()
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)
        self._loop.add_reader(read_fd, self._on_readable)

    @property
    def ended(self) -> bool:
        """Whether no more messages will come."""
        return self._ended is not None

    def request(
        self, method: str, params: Mapping[str, Any], wake: asyncio.Future[Any] | None = None
    ) -> asyncio.Future[Any]:
        """Ask the guest; the answer, or ChannelEndedError if none will come.

        `wake` is set together with the answer, a turn of the loop before a callback would do it.
        """
        answer = _Answer(loop=self._loop)
        answer.wake = wake
        if self._ended:
            answer.fail(self._ended)
            return answer
        ident = os.urandom(8).hex()
        line = rpc.request(ident, method, dict(params))
        self._waiting[ident] = answer
        self._send(line)
        return answer

    def send_bytes(self, data: bytes) -> None:
        """Write what is no message, to a peer that knows how to tell."""
        if not self._ended:
            self._send(data)

    async def drained(self) -> None:
        """Wait until all that was to be written is; also when nothing will be any more."""
        if self._outbox and not self._ended:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drained.add(waiter)
            waiter.add_done_callback(self._drained.discard)
            await waiter

    def cancel_calls(self) -> None:
        """Cancel the guest's open calls: the code that made them has ended."""
        for task in self._calls:
            task.cancel()

    def close(self) -> None:
        """Let go of both pipes."""
        if self._read_fd < 0:
            return
        self.end(ChannelEndedError())
        for fd in (self._read_fd, self._write_fd):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._read_fd = self._write_fd = -1

    def end(self, why: ChannelEndedError) -> None:
        """End the channel; all waiting requests fail with `why`."""
        if self._ended:
            return
        self._ended = why
        self._loop.remove_reader(self._read_fd)
        self._loop.remove_writer(self._write_fd)
        self.cancel_calls()
        if not self.ready.done():
            self.ready.set_exception(why)
            self.ready.exception()  # asyncio logs an exception that was never read
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.fail(why)
        self._tell_drained()

    def _on_readable(self) -> None:
        try:
            data = os.read(self._read_fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end(ChannelEndedError())
            return
        try:
            for message in self._buffer.feed(data):
                self._deliver(message)
        except rpc.ProtocolError as exc:
            self.end(ChannelEndedError(str(exc)))
            return
        self._call_bytes += len(data)
        if not self._calls:
            self._call_bytes = 0
        elif self._call_bytes > MAX_CALL_BYTES and not self._deaf:
            self._deaf = True  # it asks for more than we want to hold: the next when these are done
            self._loop.remove_reader(self._read_fd)

    def _deliver(self, message: rpc.Message) -> None:
        if "method" not in message:
            self._settle(message)
            return
        if message.get("id") is not None:
            self._start_call(message)
        elif message["method"] == "ready" and not self.ready.done():
            self.ready.set_result(None)
        elif message["method"] == "output" and self.on_output is not None:
            self.on_output(*_output(message.get("params", {})))
        else:
            raise rpc.ProtocolError("an unexpected notification")

    def _settle(self, message: rpc.Message) -> None:
        answer = self._waiting.pop(message["id"], None)
        if answer is None:
            raise rpc.ProtocolError("an answer to a request that was not sent")
        if "error" in message:
            answer.fail(RemoteError(message["error"]["message"]))
        else:
            answer.come(message["result"])

    def _start_call(self, message: rpc.Message) -> None:
        if len(self._calls) >= MAX_OPEN_CALLS:
            raise rpc.ProtocolError(f"more than {MAX_OPEN_CALLS} calls at one time")
        task = self._loop.create_task(self._answer_call(message))
        self._calls.add(task)
        task.add_done_callback(self._call_done)

    def _call_done(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not self._calls:
            self._call_bytes = 0
            self._listen_again()

    async def _answer_call(self, message: rpc.Message) -> None:
        ident = message["id"]
        async with self._hands:
            await self.drained()  # back-pressure: the guest has to drain its replies
            try:
                value = await self.on_call(message["method"], message.get("params", {}))
                line = rpc.result(ident, value)
            except CallFailedError as exc:
                line = rpc.error(ident, rpc.HOST_CALL_FAILED, str(exc), exc.data)
            except rpc.MessageTooLargeError as exc:
                line = rpc.error(ident, rpc.HOST_CALL_FAILED, str(exc))
            if not self._ended:
                self._send(line)

    def _send(self, line: bytes) -> None:
        if not self._outbox:
            line = self._write_now(line)
            if not line:
                return
        self._outbox += line
        self._flush()
        if len(self._outbox) > MAX_OUTBOX and not self._deaf:
            self._deaf = True  # it asks and does not read: hear no more until it does
            self._loop.remove_reader(self._read_fd)

    def _write_now(self, line: bytes) -> bytes:
        """Write a line to a pipe that has room, as it has nearly always; return what is left."""
        try:
            return line[os.write(self._write_fd, line) :]
        except BlockingIOError:
            return line
        except OSError as exc:
            self._cannot_write(exc)
            return b""

    def _cannot_write(self, exc: OSError) -> None:
        """End the channel: a request that was not written is not answered.

        A guest that closed its end may have answered before: the reader sees that, and the end.
        """
        if not isinstance(exc, BrokenPipeError):
            self.end(ChannelEndedError(fault=f"the host cannot write to it: {exc.strerror}"))

    def _flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: os.write(self._write_fd, self._outbox[:CHUNK])]
        except BlockingIOError:
            self._loop.add_writer(self._write_fd, self._flush)
            self._writing = True
            return
        except OSError as exc:
            self._outbox.clear()
            self._cannot_write(exc)
        self._caught_up()

    def _caught_up(self) -> None:
        """All is written: no need to wait for room, and a reason to listen again."""
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._write_fd)
        self._tell_drained()
        self._listen_again()

    def _tell_drained(self) -> None:
        for waiter in list(self._drained):
            if not waiter.done():
                waiter.set_result(None)

    def _listen_again(self) -> None:
        """Unless too much waits to be written or worked on."""
        patient = not self._outbox and self._call_bytes <= MAX_CALL_BYTES
        if self._deaf and patient and not self._ended:
            self._deaf = False
            self._loop.add_reader(self._read_fd, self._on_readable)


def _output(params: Mapping[str, Any]) -> tuple[int, bytes]:
    try:
        return int(params["stream"]), params["text"].encode("latin-1")
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise rpc.ProtocolError("output of no known shape") from None


async def _refuse(_method: str, _params: Mapping[str, Any]) -> Any:
    raise CallFailedError("the host does not accept calls yet")
