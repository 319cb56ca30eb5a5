"""Tasks: a question, a text, the exact answer; the same for the same family, seed and size."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

CODE, SHIP, ROOM, NUMBER, PATH = (
    r"\b[A-Z]{3}-\d{4}\b",
    r"\bS-\d{5}\b",
    r"\bR-\d{4}\b",
    r"(?<![\w.-])\d+(?![\w.]*\w)",
    r"\b[a-z_]+/[a-z_]+\.py\b",
)
"""What the answers of a family look like."""
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One question. `pattern` fits anything that looks like an answer of this family."""

    family: str
    seed: int
    question: str
    answer: frozenset[str]
    pattern: str
    text: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """A source tree instead of a text: files by their paths."""

    @property
    def name(self) -> str:
        """Family, size and seed."""
        return f"{self.family}-{len(self.whole) // 1000}kB-{self.seed}"

    @property
    def whole(self) -> str:
        """All of it as one text."""
        if not self.files:
            return self.text
        return "\n".join(f"===== FILE: {path} =====\n{text}" for path, text in self.files.items())

    def is_right(self, said: str) -> bool:
        """Return whether the answer names all that it should, and nothing else of that kind."""
        return frozenset(re.findall(self.pattern, _THOUSANDS.sub("", said))) == self.answer
