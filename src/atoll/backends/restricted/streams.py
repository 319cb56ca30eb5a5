"""sys.stdin, sys.stdout and sys.stderr for guest code, without access to the files behind them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class GuestStream:
    """Writes to the stream that currently has that name."""

    __slots__ = ("name",)
    name: str
    encoding = "utf-8"
    errors = "backslashreplace"
    closed = False

    @classmethod
    def over(cls, name: str) -> GuestStream:
        """Return the stream for sys.`name`."""
        made = object.__new__(cls)
        made.name = name
        return made

    def write(self, text: str) -> int:
        """Write text."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        getattr(sys, _known(self)).write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Push out what was printed."""
        getattr(sys, _known(self)).flush()

    def isatty(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return False."""
        return False

    @property
    def buffer(self) -> GuestBytes:
        """The same for bytes."""
        made = object.__new__(GuestBytes)
        made.name = _known(self)
        return made


class GuestBytes:
    """Writes bytes to the stream that currently has that name."""

    __slots__ = ("name",)
    name: str

    def write(self, data: Any) -> int:
        """Write bytes."""
        stream = getattr(sys, _known(self))
        stream.flush()
        whole = bytes(data)
        stream.buffer.write(whole)
        return len(whole)

    def flush(self) -> None:
        """Push out what was printed."""
        stream = getattr(sys, _known(self))
        stream.buffer.flush()


class GuestInput:
    """Reads from the process's sys.stdin."""

    __slots__ = ()
    encoding = "utf-8"
    closed = False

    def read(self, size: int = -1) -> str:
        """Return up to `size` characters, all that is left without a size."""
        return sys.stdin.read(int(size))

    def readline(self, size: int = -1) -> str:
        """Return the next line with its newline; an empty text at the end."""
        return sys.stdin.readline(int(size))

    def readlines(self) -> list[str]:
        """Return all lines that are left."""
        return sys.stdin.readlines()

    def __iter__(self) -> Iterator[str]:
        return iter(self.readline, "")

    def isatty(self) -> bool:
        """Return False: there is no keyboard."""
        return False

    def readable(self) -> bool:
        """Return True."""
        return True


def _known(stream: GuestStream | GuestBytes) -> str:
    return "stderr" if stream.name == "stderr" else "stdout"
