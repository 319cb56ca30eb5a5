"""Standard streams of guest code over descriptors 0, 1 and 2, made good after every cell.

Guest code may close, replace or redirect its streams; the next cell finds them whole again.
"""

from __future__ import annotations

import io
import os
import sys


class StandardStreams:
    """Keeps private copies of descriptors 1 and 2 and puts them back."""

    def __init__(self) -> None:
        self._keep_at = 0
        self._kept: dict[int, int] = {}

    def keep(self, at: int) -> None:
        """Copy descriptors 1 and 2 as they are now, to numbers from `at` on."""
        self._keep_at = at
        self._kept = {fd: copy_up(fd, at) for fd in (1, 2)}

    def expect(self, at: int, output: int, errors: int) -> None:
        """Use these copies of descriptors 1 and 2, which will be there when a cell runs."""
        self._keep_at, self._kept = at, {1: output, 2: errors}

    def forget(self) -> None:
        """Close the copies."""
        for fd in self._kept.values():
            os.close(fd)
        self._kept = {}

    @property
    def output(self) -> int:
        """The descriptor of stdout, whatever guest code did to descriptor 1."""
        return self._kept[1]

    @property
    def errors(self) -> int:
        """The descriptor of stderr, whatever guest code did to descriptor 2."""
        return self._kept[2]

    def move_up(self, fds: list[int]) -> list[int]:
        """Move descriptors to high numbers, which code that closes low ones leaves open."""
        moved = [copy_up(fd, self._keep_at) for fd in fds]
        for fd in fds:
            os.close(fd)
        return moved

    def redirect(self, output: int, errors: int) -> None:
        """Use these descriptors instead, in a clone."""
        for fd in self._kept.values():
            os.close(fd)
        self._kept = {1: output, 2: errors}

    def renew(self) -> None:
        """Restore descriptors 1 and 2, and sys.stdin, sys.stdout and sys.stderr."""
        for fd, kept in self._kept.items():
            try:
                os.dup2(kept, fd)
            except OSError:  # guest code has lowered the limit of descriptors: is it there still?
                if not os.path.samestat(os.fstat(kept), os.fstat(fd)):
                    raise
        self.make()

    def make(self) -> None:
        """Create new stream objects over the present descriptors."""
        sys.stdin = io.TextIOWrapper(io.BytesIO(b""), encoding="utf-8")
        sys.stdout = sys.__stdout__ = _writer(1)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = _writer(2)  # type: ignore[misc]

    def flush(self) -> None:
        """Flush the streams that guest code has now."""
        for name in ("stdout", "stderr"):
            try:
                getattr(sys, name).flush()
            except Exception:
                pass


def copy_up(fd: int, lowest: int) -> int:
    """Copy a descriptor to the first number from `lowest` on that is free; no child inherits it.

    Only while there is one thread. The module that has the system call for it takes long to load.
    """
    number = lowest
    while _is_open(number):
        number += 1
    return os.dup2(fd, number, inheritable=False)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def complain(text: str, end: str = "\n") -> None:
    """Write a line to stderr, if guest code has left one to write to."""
    try:
        sys.stderr.write(text + end)
    except Exception:
        pass


def _writer(fd: int) -> io.TextIOWrapper:
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
