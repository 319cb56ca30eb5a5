"""Connects a program's terminal or pipes with those of this process, byte by byte.

SECURITY: a program never gets the caller's own terminal, into which it could type (TIOCSTI), but
one of its jail; the bytes are copied here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import termios
import threading
import tty
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 1 << 16


def has_terminal() -> bool:
    """Return whether stdin and stdout are a terminal: then a program gets one of its own."""
    return os.isatty(0) and os.isatty(1)


class Copier:
    """Copies bytes from one descriptor to another in a thread until either has ended."""

    def __init__(self, source: int, target: int, *, closes: tuple[int, ...] = ()) -> None:
        self._source, self._target, self._closes = source, target, closes
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Wait until all is copied, but not for ever: the reader may have stopped reading."""
        self._thread.join(seconds)

    def stop(self) -> None:
        """Copy no more."""
        os.close(self._stop_write)
        self._thread.join()
        os.close(self._stop_read)

    def _copy(self) -> None:
        with contextlib.suppress(OSError):  # EIO: nobody has the terminal open any more
            while True:
                ready, _, _ = select.select([self._source, self._stop_read], [], [])
                if self._stop_read in ready:
                    break
                data = os.read(self._source, CHUNK)
                if not data:
                    break
                _write_all(self._target, data)
        for fd in self._closes:
            os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextlib.contextmanager
def attached(master: int) -> Iterator[None]:
    """Make our terminal a window on the program's: raw, of one size, each key sent on."""
    before = termios.tcgetattr(0)
    _copy_size(master)
    old = signal.signal(signal.SIGWINCH, lambda *_: _copy_size(master))
    shown = Copier(master, 1)
    typed = Copier(0, master)
    try:
        tty.setraw(0)
        yield
        shown.finish(5)
    finally:
        typed.stop()
        shown.stop()
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, old)


def _copy_size(master: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.ioctl(master, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8))


@contextlib.contextmanager
def passed_streams() -> Iterator[list[int]]:
    """Return descriptors 0 to 2 for a program: ours, or a pipe in place of each terminal."""
    copiers: list[Copier] = []
    given: list[int] = []
    opened: list[int] = []
    for fd in range(3):
        if not os.isatty(fd):
            given.append(fd)
            continue
        read, write = os.pipe2(os.O_CLOEXEC)
        given.append(read if fd == 0 else write)
        opened.append(given[-1])
        pump = Copier(0, write, closes=(write,)) if fd == 0 else Copier(read, fd, closes=(read,))
        copiers.append(pump)
    try:
        yield given
    finally:
        for fd in opened:
            os.close(fd)
        for copier, fd in zip(copiers, [fd for fd in range(3) if os.isatty(fd)], strict=True):
            if fd:
                copier.finish(5)
            copier.stop()
