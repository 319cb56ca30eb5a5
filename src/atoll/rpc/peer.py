"""One end of JSON-RPC 2.0: pairs answers with requests, runs the other side's calls.

A subclass has the descriptors, and knows how far the other side is trusted: `sandbox.channel`, for
a guest, and `connection`. What is sent goes through an `Outbox`, in order, as it is read.
"""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from atoll.errors import BusyError
from atoll.guest.shared import rpc
from atoll.rpc.passed_fds import close_all, size_of

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Generator, Mapping

    from atoll.rpc.blobs import Buffer

CHUNK = 1 << 16
MAX_OPEN_CALLS = 1024
ID_BYTES, IDS_DRAWN = 8, 64
REST_ABOVE = 0.01
"""Seconds of decoding above which the other side is not read for as long."""
MAX_WAITING = 64 << 20
"""Bytes of messages that may wait for room; past it, BusyError."""
RETRY_SECONDS = 0.002


class TooManyCallsError(rpc.ProtocolError):
    """The other side has made more calls than may be open at one time."""


class Wake:
    """What a task waits for, as a future; `resume` runs the task at once, not in the next turn.

    It is of the kind that asyncio.isfuture() knows: a task calls add_done_callback and result.
    """

    _asyncio_future_blocking = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done = self._cancelled = False
        self._value: Any = None
        self._waiting: tuple[Callable[[Any], object], contextvars.Context | None] | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._done:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that the task has to be of."""
        return self._loop

    def done(self) -> bool:
        """Return whether it was set or cancelled."""
        return self._done

    def result(self) -> Any:
        """Return what was set; raise CancelledError if the task was cancelled."""
        if self._cancelled:
            raise asyncio.CancelledError
        return self._value

    def set(self, value: Any) -> None:
        """Resume the task on the next iteration, with this value; later calls are ignored."""
        if not self._done:
            self._done, self._value = True, value
            if self._waiting is not None:
                callback, context = self._waiting
                self._loop.call_soon(callback, self, context=context)

    def resume(self) -> None:
        """Resume the task now; call it from the loop, not within another task."""
        if not self._done:
            self._done = True
            if self._waiting is not None:
                callback, context = self._waiting
                assert context is not None
                context.run(callback, self)

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - as a task calls it
        """Let the task that waits end with CancelledError."""
        if self._done:
            return False
        self._cancelled = True
        self.set(None)
        return True

    def add_done_callback(
        self, callback: Callable[[Any], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Keep the callback of the only task that waits."""
        self._waiting = callback, context


class Answer(asyncio.Future[Any]):
    """The answer to a request, on its way."""

    wake: Wake | None = None
    """What else ends with the answer."""
    sent = False
    """Whether the request was handed to the socket: the other side will get it."""
    bytes_before = 0
    """How many bytes were sent before the request, if the subclass counts them."""

    @property
    def has_reply(self) -> bool:
        """Whether it came, and is not an error."""
        return self.done() and not self.cancelled() and self.exception() is None

    def fail(self, why: Exception) -> None:
        """Set the exception, also where no caller awaits this request any more."""
        if not self.done():
            self.set_exception(why)
            self.exception()  # asyncio logs an exception that was never read
            if self.wake is not None:
                self.wake.set(None)


class JsonRpcPeer(ABC):
    """Requests to the other side, and its calls to us, over descriptors that a subclass has.

    SECURITY: request ids are random, so an answer cannot be forged blindly; anything that is not
    a well-formed, awaited message breaks the protocol, and ends the connection.
    """

    def __init__(self, read_fd: int, max_calls: int = MAX_OPEN_CALLS) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_calls = max_calls
        self._buffer = rpc.LineBuffer()
        self._waiting: dict[str, Answer] = {}
        self.calls: dict[str, asyncio.Task[None]] = {}
        """The other side's calls that are not answered yet, by their ids."""
        self._ended: Exception | None = None
        self.ended = False
        """Whether no more messages will come."""
        self._idents: list[str] = []
        """Random ids for the next requests: the system is asked for many at once."""
        self._answered: Wake | None = None
        """What waits for the last answer that was read."""
        self._reader = read_fd
        self._loop.add_reader(read_fd, self._on_readable)

    def cancel_calls(self) -> None:
        """Cancel the other side's open calls."""
        for task in list(self.calls.values()):
            task.cancel()

    def _expect(self, method: str, params: Mapping[str, Any]) -> tuple[str, bytes, Answer]:
        """Return the id of a new request, its line, and the answer that is waited for."""
        if not self._idents:
            drawn = os.urandom(ID_BYTES * IDS_DRAWN).hex()
            self._idents = [
                drawn[at : at + 2 * ID_BYTES] for at in range(0, len(drawn), 2 * ID_BYTES)
            ]
        ident = self._idents.pop()
        message = {"jsonrpc": "2.0", "id": ident, "method": method, "params": dict(params)}
        line = rpc.encode(message)
        answer = self._waiting[ident] = Answer(loop=self._loop)
        return ident, line, answer

    def _set_ended(self, why: Exception) -> None:
        """Deliver nothing more: fail the requests that wait, cancel the calls that run."""
        self._ended, self.ended = why, True
        self.cancel_calls()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.fail(why)

    def _on_readable(self) -> None:
        try:
            try:
                data = self._receive()
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lose(None)
                return
            large = self._buffer.size >= rpc.LARGE
            for message in self._large(data) if large else self._buffer.feed(data):
                if self.ended:
                    break
                if "method" not in message:
                    self._settle(message)
                elif message.get("id") is not None:
                    self._start_call(message)
                else:
                    self._notified(message["method"], message.get("params", {}))
            self._received(data)
        except rpc.ProtocolError as exc:
            self._lose(str(exc))
        if self._answered is not None:  # last, since the task may send the next request now
            wake, self._answered = self._answered, None
            wake.resume()

    def _large(self, data: bytes) -> list[rpc.Message]:
        """Return the messages that `data` completes, the first a large one; then pause reading."""
        began = time.thread_time()
        messages = self._buffer.feed(data)
        if (took := time.thread_time() - began) > REST_ABOVE:
            self._rest(took)
        return messages

    def _rest(self, seconds: float) -> None:
        """Read nothing for as long as a message took to decode.

        A side that sends large messages without end has half of the event loop at most.
        """
        self._loop.remove_reader(self._reader)
        self._loop.call_later(seconds, self._read_on)

    def _read_on(self) -> None:
        if not self.ended:
            self._loop.add_reader(self._reader, self._on_readable)

    def _settle(self, message: rpc.Message) -> None:
        answer = self._waiting.pop(message["id"], None)
        if answer is None:
            raise rpc.ProtocolError("an answer to a request that was not sent")
        if "error" in message:
            answer.fail(self._refusal(message["error"]))
        elif not answer.done():  # else its caller has gone
            answer.set_result(message["result"])
            if answer.wake is not None:
                if self._answered is not None:
                    self._answered.set(None)
                self._answered = answer.wake

    def _start_call(self, message: rpc.Message) -> None:
        ident = message["id"]
        if ident in self.calls:
            raise rpc.ProtocolError("an id that is in use")
        if len(self.calls) >= self._max_calls:
            raise TooManyCallsError(f"too many calls at one time: the limit is {self._max_calls}")
        task = self.calls[ident] = self._loop.create_task(self._answer_call(message))
        task.add_done_callback(partial(self._call_done, message))

    def _call_done(self, message: rpc.Message, _task: object) -> None:
        self.calls.pop(message["id"], None)

    def _receive(self) -> bytes:
        """Read from the connection: nothing at its end, BlockingIOError if nothing has come."""
        return os.read(self._reader, CHUNK)

    @abstractmethod
    def _received(self, data: bytes) -> None:
        """Take note that the messages in `data` were delivered."""

    @abstractmethod
    def _lose(self, violation: str | None) -> None:
        """End the connection: the other side has gone, or broke the protocol."""

    @abstractmethod
    def _notified(self, method: str, params: dict[str, Any]) -> None:
        """Take a notification; ProtocolError if it is unknown."""

    @abstractmethod
    def _refusal(self, error: dict[str, Any]) -> Exception:
        """Return the exception for an answer that is an error."""

    @abstractmethod
    async def _answer_call(self, message: rpc.Message) -> None:
        """Run a call of the other side and send its answer."""


class NotYetError(Exception):
    """The message may not be written before the other side has read what was."""


class Outbox:
    """Messages with their descriptors; above `high_water` unread bytes, others wait for room.

    `send` writes a part of a message, `send_fds` also all of its descriptors; they close nothing.
    `on_fault` is called once what waits is dropped because writing failed, `on_room` when there is
    room again.
    """

    def __init__(
        self,
        fd: int,
        send: Callable[[Buffer], int],
        on_fault: Callable[[OSError], None],
        on_room: Callable[[], None] | None = None,
        *,
        send_fds: Callable[[Buffer, list[int]], int] | None = None,
        high_water: int = 0,
        max_waiting: int | None = MAX_WAITING,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd, self._send, self._send_fds = fd, send, send_fds
        self._high_water, self._max_waiting = high_water, max_waiting
        self._on_fault, self._on_room = on_fault, on_room
        self._queue: deque[tuple[memoryview, list[int]]] = deque()
        self._waiting = 0
        self.has_room = asyncio.Event()
        self.has_room.set()
        self._open, self._writing = True, False
        self.written = 0
        """Bytes of messages that were handed to the system."""
        self.size = 0
        """Unread bytes, those in memory files too."""
        self.overrun = 0
        """Bytes that were put here while there was no room."""
        self.last_drained_at = float("-inf")
        """When the other side last made room by reading, by the loop's clock."""

    async def wait_for_room(self, size: int = 0) -> None:
        """Wait until there is room; BusyError if too much waits for that already."""
        if self._max_waiting is not None and self._waiting + size > self._max_waiting:
            raise BusyError("the other side is slow, and too much waits for it already")
        self._waiting += size
        try:
            while not self.has_room.is_set():  # another that waited may have taken it
                await self.has_room.wait()
        finally:
            self._waiting -= size

    def put(self, data: Buffer, fds: list[int]) -> None:
        """Send a message, now or as soon as the other side reads; its descriptors are closed."""
        view = memoryview(data)
        if not self._queue and not fds:
            try:  # there is nearly always room
                sent = self._send(data)
                self.written += sent
                if sent == len(view):
                    return
                view = view[sent:]
            except BlockingIOError:
                pass
            except OSError as exc:
                self._on_fault(exc)
                return
        size = len(view) + size_of(fds)
        self._queue.append((view, fds))
        self.size += size
        if not self.has_room.is_set():
            self.overrun += size
        if len(self._queue) == 1:
            self._flush()
        if self.size > self._high_water:
            self.has_room.clear()

    def close(self) -> None:
        """Send nothing more."""
        self._open = False
        self._loop.remove_writer(self._fd)
        self._drop()

    def _flush(self) -> None:
        """Send what there is room for."""
        if self._writing:
            self.last_drained_at = self._loop.time()
        try:
            while self._queue:
                self._write_first()
        except NotYetError:
            self._loop.call_later(RETRY_SECONDS, self._flush_again)
        except BlockingIOError:
            self._loop.add_writer(self._fd, self._flush)
            self._writing = True
            return
        except OSError as exc:
            self._drop()
            self._on_fault(exc)
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def _flush_again(self) -> None:
        if self._open:
            self._flush()

    def _write_first(self) -> None:
        """Write as much of the first message as there is room for."""
        view, fds = self._queue[0]
        if fds:
            assert self._send_fds is not None
            sent = self._send_fds(view, fds)
        else:
            sent = self._send(view)
        self.written += sent
        self.size -= sent + size_of(fds)
        close_all(fds)
        if sent == len(view):
            self._queue.popleft()
        else:
            self._queue[0] = (view[sent:], [])
        if self.size <= self._high_water:
            self._tell_room()

    def _tell_room(self) -> None:
        if not self.has_room.is_set():
            self.overrun = 0
            self.has_room.set()
            if self._on_room is not None:
                self._on_room()

    def _drop(self) -> None:
        close_all([fd for _, fds in self._queue for fd in fds])
        self._queue.clear()
        self.size = 0
        self._tell_room()
