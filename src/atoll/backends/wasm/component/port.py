"""The guest runtime's port, implemented by the component's imports."""

from __future__ import annotations

import sys

import wit_world  # type: ignore[import-not-found]

_SAMPLES = {1: "\xe9", 2: "\u0101", 4: "\U00010348"}
"""A character of each width, none in ASCII: a str of them has the layout of the context."""


class WasmPort:
    """Passes everything to the worker."""

    def call(self, line: str) -> str:
        """Call the host and return its answer."""
        answer: str = wit_world.call(line)
        return answer

    def emit(self, stream: int, data: str) -> None:
        """Print."""
        wit_world.emit(stream, data)

    def take(self, size: int) -> str:
        """Return bytes of the passed descriptor."""
        data: str = wit_world.take(size)
        return data

    def put(self, data: str) -> None:
        """Write bytes to the passed descriptor."""
        wit_world.put(data)

    def sleep(self, seconds: float) -> bool:
        """Sleep; return whether an interrupt ended it."""
        interrupted: bool = wit_world.sleep(seconds)
        return interrupted

    def leave(self, code: int) -> None:
        """End the guest."""
        wit_world.leave(code & 0xFF)

    def gate(self, *, open: bool) -> bool:  # noqa: A002
        """Allow or forbid interrupts."""
        due: bool = wit_world.gate(open)
        return due

    def text(self, width: int, length: int, ascii_only: bool) -> str | None:  # noqa: FBT001
        """Return a str whose memory the worker fills; None if it cannot."""
        text = ("\0" if ascii_only else _SAMPLES[width]) * length
        at = id(text) + sys.getsizeof(text) - (length + 1) * width
        return text if wit_world.fill(at, length * width) else None
