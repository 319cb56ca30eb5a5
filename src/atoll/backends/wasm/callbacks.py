"""Functions that the guest imports from the worker: host calls, output, passed descriptors, time.

SECURITY: all arguments are the guest's. A line is passed on only if it is one line with one call.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from atoll.guest.core import rights
from atoll.guest.shared import rpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.backends.wasm.interrupts import Interrupts
    from atoll.backends.wasm.memory import LinearMemory


CHUNK = 1 << 18


class HostGoneError(EOFError):
    """The host has closed the channel."""


class Lines:
    """Reads and writes whole lines."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._kept = bytearray()
        self._alarm = -1

    def watch(self, alarm: int) -> None:
        """Stop waiting when the descriptor `alarm` becomes readable."""
        self._alarm = alarm

    def read(self, stop: Callable[[], bool] = lambda: False) -> bytes | None:
        """Return the next line; None when `stop()` is true; HostGoneError at the end."""
        while True:
            line, newline, rest = self._kept.partition(b"\n")
            if newline:
                self._kept = rest
                return bytes(line)
            if not self._wait(stop):
                return None
            data = os.read(self._read_fd, CHUNK)
            if not data:
                raise HostGoneError
            self._kept += data

    def write(self, line: bytes) -> None:
        """Write one line."""
        view = memoryview(line + b"\n")
        try:
            while view:
                view = view[os.write(self._write_fd, view) :]
        except BrokenPipeError:
            raise HostGoneError from None

    def _wait(self, stop: Callable[[], bool]) -> bool:
        """Wait for input; return whether there is any."""
        poll = select.poll()
        for fd in (self._read_fd, self._alarm):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while not stop():
            if any(fd == self._read_fd for fd, _ in poll.poll()):
                return True
        return False


NAMES = ("call", "emit", "take", "fill", "put", "sleep", "leave", "gate")
LATIN = "latin-1"
PIECE = 1 << 20
LONGEST_SLEEP = 1e6


class Callbacks:
    """The functions that the component imports."""

    def __init__(self, lines: Lines, interrupts: Interrupts) -> None:
        self._lines, self._interrupts = lines, interrupts
        self._passed_fd, self._at = -1, 0
        self.memory: LinearMemory | None = None
        self.on_leave: Callable[[int], None] = os._exit

    def by_name(self) -> dict[str, Callable[..., object]]:
        """Return the functions by the names that the component imports."""
        return {name: getattr(self, name) for name in NAMES}

    def call(self, line: str) -> str:
        """Send a call to the host and return its answer; "" if interrupted."""
        data = single(line)
        message = rpc.decode(data)
        if "method" not in message:
            raise rpc.ProtocolError("not a call")
        self._lines.write(data)
        with self._interrupts.wait():
            while (answer := self._lines.read(lambda: self._interrupts.due)) is not None:
                if rpc.decode(answer).get("id") == message.get("id"):
                    return answer.decode("ascii")
        return ""

    def emit(self, number: int, data: str) -> None:
        """Print."""
        _write_all(2 if number == 2 else 1, data)

    def take(self, size: int) -> str:
        """Return bytes of the passed descriptor; none at its end."""
        fd = self._open_passed_fd()
        try:
            data = os.pread(fd, min(size, PIECE), self._at)
        except OSError:  # a pipe has no offset
            data = os.read(fd, min(size, PIECE))
        self._at += len(data)
        if not data:
            self.drop_passed_fd()
        return data.decode(LATIN)

    def fill(self, address: int, size: int) -> bool:
        """Copy the passed file into guest memory; return False if it must be read in pieces."""
        fd = self._open_passed_fd()
        done = self.memory is not None and self.memory.read_from(fd, address, size)
        if done:
            self.drop_passed_fd()
        return done

    def put(self, data: str) -> None:
        """Write bytes to the passed descriptor."""
        _write_all(self._open_passed_fd(), data)

    def sleep(self, seconds: float) -> bool:
        """Sleep; return whether an interrupt ended it."""
        poll = select.poll()
        poll.register(self._interrupts.alarm, select.POLLIN)
        with self._interrupts.wait():
            poll.poll(min(max(0.0, seconds), LONGEST_SLEEP) * 1000)  # in this order NaN is 0
            return self._interrupts.due

    def leave(self, code: int) -> None:
        """End the guest with an exit code: a WASI exit has none."""
        self.on_leave(code & 0xFF)

    def gate(self, is_open: bool) -> bool:  # noqa: FBT001 - the component's signature
        """Record that guest code begins or ends."""
        return self._interrupts.gate(is_open=is_open)

    def drop_passed_fd(self) -> None:
        """Close the passed descriptor."""
        if self._passed_fd >= 0:
            os.close(self._passed_fd)
        self._passed_fd, self._at = -1, 0

    def _open_passed_fd(self) -> int:
        if self._passed_fd < 0:
            self._passed_fd = rights.receive()
        return self._passed_fd


def single(line: str) -> bytes:
    """Return a line of the guest as bytes; ProtocolError if it is not exactly one line."""
    if not line.isascii() or "\n" in line or len(line) > rpc.MAX_MESSAGE_BYTES:
        raise rpc.ProtocolError("not a line")
    return line.encode("ascii")


def _write_all(fd: int, data: str) -> None:
    view = memoryview(data.encode(LATIN))
    while view:
        view = view[os.write(fd, view) :]
