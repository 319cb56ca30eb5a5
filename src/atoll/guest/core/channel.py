"""The guest's end of the private channel: the host's requests in, calls to the host out.

Any thread may call the host. The first thread that waits reads for all of them and delivers each
message to the thread that it belongs to, so calls from several threads overlap on the host.
"""

from __future__ import annotations

import _thread
import os
import select

from ..shared import rpc
from . import failures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .interrupt import InterruptGate

CHUNK = 1 << 16
PATIENCE_SECONDS = 0.05
IN_CHILD = (
    "a child process cannot call the host: call it from threads, or many at once with "
    "batch_llm_query"
)


class ChannelClosedError(EOFError):
    """The host has closed the channel."""


class Channel:
    """Messages over two descriptors, never torn by an interrupt and safe among threads."""

    def __init__(self, read_fd: int, write_fd: int, gate: InterruptGate) -> None:
        self._read_fd, self._write_fd, self._gate = read_fd, write_fd, gate
        self._readable = _poll(read_fd)
        self._buffer = rpc.LineBuffer()
        self._requests: list[rpc.Message] = []
        self._answers: dict[str, rpc.Message | None] = {}
        self._reader: int | None = None
        self._reading = _thread.allocate_lock()
        self._writing = _thread.allocate_lock()
        self._count = 0

    def next_request(self) -> rpc.Message:
        """Wait for the host's next request; raise ChannelClosedError at the end."""
        self._wait(lambda: bool(self._requests), interruptible=False)
        return self._requests.pop(0)

    def await_end(self, milliseconds: int) -> None:
        """Raise ChannelClosedError if the host closes within this time; return if it asks more."""
        events = self._readable.poll(milliseconds)
        if events and not events[0][1] & select.POLLIN:
            raise ChannelClosedError("the host has gone")

    def send(self, line: bytes) -> None:
        """Write one encoded message whole."""
        view = memoryview(line)
        with self._gate, self._writing:
            try:
                while view:
                    view = view[os.write(self._write_fd, view) :]
            except OSError:
                raise ChannelClosedError("the host has gone") from None

    def call(self, method: str, params: rpc.Message) -> Any:
        """Ask the host and wait for its answer; HostCallError in a forked child."""
        if self._write_fd < 0:
            raise failures.HostCallError(IN_CHILD)
        ident = self._new_id()
        try:
            self._answers[ident] = None
            self.send(rpc.request(ident, method, params))
            self._wait(lambda: self._answers[ident] is not None)
            answer = self._answers[ident]
        finally:
            self._answers.pop(ident, None)  # an answer that comes after an interrupt is dropped
        assert answer is not None
        if "error" in answer:
            raise failures.from_error(answer["error"])
        return answer["result"]

    def _new_id(self) -> str:
        with self._gate, self._writing:
            self._count += 1
            return "g{}".format(self._count)

    def close_in_child(self) -> None:
        """Close the channel in a forked child, which must not read or answer for its parent."""
        for fd in (self._read_fd, self._write_fd):
            try:
                os.close(fd)
            except OSError:
                pass
        self._read_fd = self._write_fd = -1
        self._reading, self._writing = _thread.allocate_lock(), _thread.allocate_lock()
        self._reader = None

    def reopen(self, read_fd: int, write_fd: int) -> None:
        """Use other descriptors from now on, in a clone; messages of the parent are dropped."""
        self._read_fd, self._write_fd = read_fd, write_fd
        self._readable = _poll(read_fd)
        self._buffer, self._requests, self._answers = rpc.LineBuffer(), [], {}

    def _wait(self, done: Callable[[], bool], interruptible: bool = True) -> None:
        me = _thread.get_ident()
        while not done():
            try:
                with self._gate:
                    if self._reading.acquire(False):
                        self._reader = me
                if self._reader == me:
                    self._read_some(done, interruptible)
                else:
                    self._wait_for_reader()
            finally:
                self._stop_reading(me)

    def _wait_for_reader(self) -> None:
        """Sleep until the thread that reads has read something."""
        with self._gate:
            if self._reading.acquire(True, PATIENCE_SECONDS):
                self._reading.release()

    def _stop_reading(self, me: int) -> None:
        with self._gate:
            if self._reader == me:
                self._reader = None
                self._reading.release()

    def _read_some(self, done: Callable[[], bool], interruptible: bool) -> None:
        if done():  # another thread read it just before it was our turn
            return
        if self._read_fd < 0:
            raise ChannelClosedError("a forked child has no channel to the host")
        if interruptible:
            self._readable.poll()  # an interrupt may leave here: nothing is off the pipe yet
        with self._gate:
            data = os.read(self._read_fd, CHUNK)
            if not data:
                raise ChannelClosedError("the host has gone")
            for message in self._buffer.feed(data):
                self._deliver(message)

    def _deliver(self, message: rpc.Message) -> None:
        if "method" in message:
            self._requests.append(message)
        elif message["id"] in self._answers:
            self._answers[message["id"]] = message


def _poll(fd: int) -> Any:
    """Return what waits until a descriptor can be read."""
    poll = select.poll()
    if fd >= 0:  # a zygote's guest gets its descriptors later
        poll.register(fd, select.POLLIN)
    return poll
