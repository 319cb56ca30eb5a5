"""sys.stdin, sys.stdout and sys.stderr as guest code sees them: no way to the files behind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class GuestStream:
    """Writes to whatever the stream of that name is now."""

    __slots__ = ("name",)
    name: str
    encoding = "utf-8"
    errors = "backslashreplace"
    closed = False

    @classmethod
    def over(cls, name: str) -> GuestStream:
        """The stream that is sys.`name`."""
        made = object.__new__(cls)
        made.name = name
        return made

    def write(self, text: str) -> int:
        """Print text as it is."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        getattr(sys, _known(self)).write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Print many."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Push out what was printed."""
        getattr(sys, _known(self)).flush()

    def isatty(self) -> bool:
        """Nobody types here."""
        return False

    def writable(self) -> bool:
        """Nothing else can be done with it."""
        return True

    def readable(self) -> bool:
        """There is nothing to read."""
        return False

    @property
    def buffer(self) -> GuestBytes:
        """The same for bytes."""
        made = object.__new__(GuestBytes)
        made.name = _known(self)
        return made


class GuestBytes:
    """Bytes to whatever the stream of that name is now."""

    __slots__ = ("name",)
    name: str

    def write(self, data: Any) -> int:
        """Print bytes as they are."""
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
