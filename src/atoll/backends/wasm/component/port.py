"""The component's imports, as the runtime's port."""

from __future__ import annotations

import sys

import wit_world  # type: ignore[import-not-found]

_SAMPLES = {1: "\xe9", 2: "\u0101", 4: "\U00010348"}
"""A character of each width, none of them ASCII: a text of it is laid out as the context is."""


class WasmPort:
    """Hands everything on to the host."""

    def call(self, line: str) -> str:
        """Ask the host."""
        answer: str = wit_world.call(line)
        return answer

    def emit(self, stream: int, data: str) -> None:
        """Print."""
        wit_world.emit(stream, data)

    def take(self, size: int) -> str:
        """Bytes on their way in."""
        data: str = wit_world.take(size)
        return data

    def put(self, data: str) -> None:
        """Bytes on their way out."""
        wit_world.put(data)

    def sleep(self, seconds: float) -> bool:
        """Let time pass."""
        interrupted: bool = wit_world.sleep(seconds)
        return interrupted

    def leave(self, code: int) -> None:
        """End it all."""
        wit_world.leave(code & 0xFF)

    def gate(self, *, open: bool) -> bool:  # noqa: A002
        """Open or shut the way for interrupts."""
        due: bool = wit_world.gate(open)
        return due

    def text(self, width: int, length: int, ascii_only: bool) -> str | None:  # noqa: FBT001
        """A text that the host writes into our memory itself; None if it cannot."""
        text = ("\0" if ascii_only else _SAMPLES[width]) * length
        at = id(text) + sys.getsizeof(text) - (length + 1) * width
        return text if wit_world.fill(at, length * width) else None
