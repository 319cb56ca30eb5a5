"""One end of JSON-RPC 2.0: pairs answers with requests, runs the other side's calls.

A subclass has the descriptors, and knows how far the other side is trusted: `sandbox.channel`, for
a guest, and `connection`.
"""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from atoll.guest.shared import rpc

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Generator, Mapping

CHUNK = 1 << 16
MAX_OPEN_CALLS = 1024
ID_BYTES, IDS_DRAWN = 8, 64
REST_ABOVE = 0.01
"""Seconds of decoding above which the other side is not read for as long."""


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
    """Whether the request was handed to the socket: the other side will hear of it."""
    bytes_before = 0
    """How many bytes were sent before the request, if the subclass counts them."""

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
        task.add_done_callback(lambda _: self._call_done(message))

    def _call_done(self, message: rpc.Message) -> None:
        self.calls.pop(message["id"], None)

    @abstractmethod
    def _receive(self) -> bytes:
        """Read from the connection: nothing at its end, BlockingIOError if nothing has come."""

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
