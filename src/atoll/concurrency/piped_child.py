"""A child process that is asked through its pipes; an answer that is late is a TimeoutError.

Readers of archives, pages and code, and expressions without RE2, run in one.
"""

from __future__ import annotations

import os
import select
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Left = Callable[[], float]
    """Returns the seconds that are left."""

_PIECE = 1 << 20


class PipedChild:
    """One process; one thread at a time may ask it, any thread may kill it."""

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], fds: Sequence[int] = ()
    ) -> None:
        """Start it; it inherits the descriptors, with the same numbers. OSError if that fails."""
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=dict(env),
            cwd="/",
            start_new_session=True,
            pass_fds=fds,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._pipes = self._process.stdin, self._process.stdout
        self._to, self._from = (pipe.fileno() for pipe in self._pipes)
        os.set_blocking(self._to, False)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, data: bytes, left: Left) -> None:
        """Write all of the data; BrokenPipeError if the process has ended."""
        unsent = memoryview(data)
        while unsent:
            _wait(self._to, select.POLLOUT, left)
            unsent = unsent[os.write(self._to, unsent[:_PIECE]) :]

    def receive(self, size: int, left: Left) -> bytes:
        """Read exactly `size` bytes; EOFError if the process has ended."""
        data = bytearray()
        while len(data) < size:
            _wait(self._from, select.POLLIN, left)
            piece = os.read(self._from, min(size - len(data), _PIECE))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def exit_code(self, seconds: float) -> int:
        """Wait until it has ended, and return how, as Popen.returncode does."""
        return self._process.wait(seconds)

    def kill(self) -> None:
        """Kill it, also while another thread asks it."""
        with suppress(ProcessLookupError):
            self._process.kill()

    def end(self) -> None:
        """Kill it, wait for its end and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in self._pipes:
            pipe.close()


def _wait(fd: int, event: int, left: Left) -> None:
    """Wait until the pipe is ready; with poll, because select takes no descriptor over 1023."""
    poll = select.poll()
    poll.register(fd, event)
    while not poll.poll(max(left(), 0) * 1000):
        if left() <= 0:
            raise TimeoutError
