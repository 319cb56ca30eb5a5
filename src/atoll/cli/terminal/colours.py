"""Terminal colours, off where output is not a terminal or NO_COLOR is set."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True, slots=True)
class Colours:
    """Wraps text in colour codes if enabled."""

    enabled: bool

    @classmethod
    def of(cls, stream: TextIO) -> Colours:
        """Return colours for a stream: enabled if it is a terminal and NO_COLOR is not set."""
        return cls(stream.isatty() and not os.environ.get("NO_COLOR"))

    def good(self, text: str) -> str:
        """Return text in green."""
        return self._with("32", text)

    def bad(self, text: str) -> str:
        """Return text in red."""
        return self._with("31", text)

    def warn(self, text: str) -> str:
        """Return text in yellow."""
        return self._with("33", text)

    def faint(self, text: str) -> str:
        """Return text dimmed."""
        return self._with("2", text)

    def strong(self, text: str) -> str:
        """Return text in bold."""
        return self._with("1", text)

    def _with(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.enabled else text
