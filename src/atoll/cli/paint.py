"""Colours, on a terminal and where NO_COLOR is not set; doctor and trace use it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True, slots=True)
class Paint:
    """Colours text, or leaves it as it is."""

    enabled: bool

    @classmethod
    def of(cls, stream: TextIO) -> Paint:
        """The colours that suit a stream."""
        return cls(stream.isatty() and not os.environ.get("NO_COLOR"))

    def good(self, text: str) -> str:
        """All is well."""
        return self._with("32", text)

    def bad(self, text: str) -> str:
        """All is not well."""
        return self._with("31", text)

    def warn(self, text: str) -> str:
        """All may not be well."""
        return self._with("33", text)

    def faint(self, text: str) -> str:
        """What matters less."""
        return self._with("2", text)

    def strong(self, text: str) -> str:
        """A heading."""
        return self._with("1", text)

    def _with(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.enabled else text
