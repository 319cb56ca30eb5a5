"""One end of JSON-RPC 2.0: pairs answers with requests, runs the other side's calls.

The descriptors, and how far the other side is trusted, are a subclass's: `channel` and `wire`.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from atoll.guest import rpc

if TYPE_CHECKING:
    from collections.abc import Mapping

CHUNK = 1 << 16
MAX_OPEN_CALLS = 1024


class TooManyCallsError(rpc.ProtocolError):
    """The other side has made more than MAX_OPEN_CALLS calls that are not answered yet."""


class Answer(asyncio.Future[Any]):
    """The answer to a request, on its way."""

    wake: asyncio.Future[Any] | None = None
    """What else ends with the answer."""
    sent = False
    """Whether the request was handed to the socket: the other side will hear of it."""

    def come(self, value: Any) -> None:
        """Set the result."""
        if not self.done():
            self.set_result(value)
            self._wake()

    def fail(self, why: Exception) -> None:
        """Set the exception, also where no caller awaits this request any more."""
        if not self.done():
            self.set_exception(why)
            self.exception()  # asyncio logs an exception that was never read
            self._wake()

    def _wake(self) -> None:
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)


class JsonRpcPeer(ABC):
    """Requests to the other side, and its calls to us, over descriptors that a subclass has.

    SECURITY: request ids are random, so an answer cannot be forged blindly; anything that is not
    a well-formed, awaited message breaks the protocol, and ends the connection.
    """

    def __init__(self, read_fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._buffer = rpc.LineBuffer()
        self._waiting: dict[str, Answer] = {}
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._ended: Exception | None = None
        self._loop.add_reader(read_fd, self._on_readable)

    @property
    def ended(self) -> bool:
        """Whether no more messages will come."""
        return self._ended is not None

    @property
    def open_calls(self) -> list[str]:
        """The ids of the other side's calls that are not answered yet."""
        return list(self._calls)

    def cancel_calls(self) -> None:
        """Cancel the other side's open calls."""
        for task in list(self._calls.values()):
            task.cancel()

    def _expect(self, method: str, params: Mapping[str, Any]) -> tuple[str, bytes, Answer]:
        """Return the id of a new request, its line, and the answer that is waited for."""
        ident = os.urandom(8).hex()
        line = rpc.request(ident, method, dict(params))
        answer = self._waiting[ident] = Answer(loop=self._loop)
        return ident, line, answer

    def _set_ended(self, why: Exception) -> None:
        """Deliver nothing more: fail the requests that wait, cancel the calls that run."""
        self._ended = why
        self.cancel_calls()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.fail(why)

    def _on_readable(self) -> None:
        try:
            data = self._receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose(None)
            return
        try:
            for message in self._buffer.feed(data):
                if not self.ended:
                    self._deliver(message)
            self._received(data)
        except rpc.ProtocolError as exc:
            self._lose(str(exc))

    def _deliver(self, message: rpc.Message) -> None:
        if "method" not in message:
            self._settle(message)
        elif message.get("id") is not None:
            self._start_call(message)
        else:
            self._notified(message["method"], message.get("params", {}))

    def _settle(self, message: rpc.Message) -> None:
        answer = self._waiting.pop(message["id"], None)
        if answer is None:
            raise rpc.ProtocolError("an answer to a request that was not sent")
        if "error" in message:
            answer.fail(self._refusal(message["error"]))
        else:
            answer.come(message["result"])

    def _start_call(self, message: rpc.Message) -> None:
        ident = message["id"]
        if ident in self._calls:
            raise rpc.ProtocolError("an id that is in use")
        if len(self._calls) >= MAX_OPEN_CALLS:
            raise TooManyCallsError(f"too many calls at one time: the limit is {MAX_OPEN_CALLS}")
        task = self._calls[ident] = self._loop.create_task(self._answer_call(message))
        task.add_done_callback(lambda _: self._call_done(message))

    def _call_done(self, message: rpc.Message) -> None:
        self._calls.pop(message["id"], None)

    @abstractmethod
    def _receive(self) -> bytes:
        """Read from the connection; nothing at its end."""

    @abstractmethod
    def _received(self, data: bytes) -> None:
        """Take note that the messages in `data` were delivered."""

    @abstractmethod
    def _lose(self, violation: str | None) -> None:
        """End the connection: the other side has gone, or broke the protocol."""

    @abstractmethod
    def _notified(self, method: str, params: dict[str, Any]) -> None:
        """Take a notification; ProtocolError for one that is not known."""

    @abstractmethod
    def _refusal(self, error: dict[str, Any]) -> Exception:
        """Return the exception for an answer that is an error."""

    @abstractmethod
    async def _answer_call(self, message: rpc.Message) -> None:
        """Run a call of the other side and send its answer."""
