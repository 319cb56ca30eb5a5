"""Lines between the worker and the host; reading can be interrupted."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

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
