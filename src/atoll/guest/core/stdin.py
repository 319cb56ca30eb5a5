"""sys.stdin of guest code where the host has input for it: bytes are asked for as they are read."""

from __future__ import annotations

import io

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Read = Callable[[int], bytes]

STDIN_CALL = "<stdin>"
"""The name of the host's function. No tool can have it: it is not a Python name."""
PIECE = 1 << 16


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


def is_host_input(stream: Any) -> bool:
    """Return whether a text stream reads what the host has."""
    buffer = getattr(stream, "buffer", None)
    return isinstance(getattr(buffer, "raw", None), HostInput)
