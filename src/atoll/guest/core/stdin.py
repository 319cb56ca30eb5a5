"""sys.stdin of guest code where the host has input for it, and `input()`.

Bytes are asked for as they are read. Where there is no input, `input()` says what to do.
"""

from __future__ import annotations

import builtins
import io
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Read = Callable[[int], bytes]

STDIN_CALL = "<stdin>"
"""The name of the host's function. No tool can have it: it is not a Python name."""
PIECE = 1 << 16
NO_KEYBOARD = (
    "input() has nothing to read: this sandbox has no keyboard. Pass the value in instead: with "
    "set_variable(), as `context`, by a tool that asks for it, or as standard input: "
    "create_sandbox(on_stdin=...), or a pipe into `atoll run`"
)


class HostInput(io.RawIOBase):
    """Standard input as a file whose bytes come from the host, a piece at a time."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def readable(self) -> bool:
        """Return True: reading is all that this file can do."""
        return True

    def readinto(self, room: Any) -> int:
        """Fill some of `room` with what the host has; wait until it has something."""
        size = min(len(room), PIECE)
        data = self._read(size)
        if not isinstance(data, bytes) or len(data) > size:
            raise OSError("the host sent something that is not standard input")
        room[: len(data)] = data
        return len(data)


def open_text(read: Read) -> io.TextIOWrapper:
    """Return a text stream over what `read(size)` gives; b"" is its end."""
    return io.TextIOWrapper(
        io.BufferedReader(HostInput(read), PIECE), encoding="utf-8", errors="surrogateescape"
    )


python_input = builtins.input
"""The interpreter's own, which a session's takes the place of."""


def is_given(stream: Any) -> bool:
    """Return whether a text stream reads what the host has, or a descriptor."""
    buffer = getattr(stream, "buffer", None)
    return isinstance(getattr(buffer, "raw", None), (HostInput, io.FileIO))


def read_line(prompt: object = "", /) -> str:
    """Read a line from standard input, without its newline; the prompt goes to stdout."""
    stream = sys.stdin
    if stream is None:
        raise RuntimeError("input(): lost sys.stdin")
    if prompt != "":
        sys.stdout.write(str(prompt))
        flush = getattr(sys.stdout, "flush", None)  # Python's own input() can do without
        if flush is not None:
            flush()
    line = stream.readline()
    if not line:
        raise EOFError("EOF when reading a line" if is_given(stream) else NO_KEYBOARD)
    return line[:-1] if line.endswith("\n") else line  # noqa: FURB188 - CPython 3.8


read_line.__name__ = read_line.__qualname__ = "input"
read_line.__module__ = "builtins"
