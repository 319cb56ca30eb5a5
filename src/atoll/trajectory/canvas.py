"""Lines for a terminal: indented, wrapped to its width, painted; show writes on it.

# SECURITY: every text goes through `terminal_text` here, and only here. Texts of guests and models
# stand behind a bar of ours, so that they can forge no line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from atoll.trajectory import terminal_text
from atoll.trajectory.words import count

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = 2
NARROWEST = 40
"""Columns; what stands before a text takes at most three quarters of them."""
SAY_LINES, HEAD = 5, 40
"""Lines of a remark, unless all is shown, and columns of what it begins with."""

Stroke = Callable[[str], str]


class Brush(Protocol):
    """Paints text, or leaves it as it is."""

    def good(self, text: str) -> str: ...  # noqa: D102
    def bad(self, text: str) -> str: ...  # noqa: D102
    def warn(self, text: str) -> str: ...  # noqa: D102
    def strong(self, text: str) -> str: ...  # noqa: D102
    def faint(self, text: str) -> str: ...  # noqa: D102


class NoBrush:
    """Leaves text as it is."""

    def good(self, text: str) -> str:
        """The text."""
        return text

    bad = warn = strong = faint = good


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """How wide a terminal is, how it is painted, and whether texts are shown whole."""

    width: int
    brush: Brush
    full: bool

    def say(self, level: int, head: str, text: str, stroke: Stroke) -> Iterator[str]:
        """A painted head, and what there is to say, wrapped beside it."""
        first = terminal_text.clip(terminal_text.line(head), min(HEAD, self.width // 3))
        indent = self._indent(level)
        lead = terminal_text.columns(first) + 2
        room = self.width - len(indent) - lead
        told = self._first(terminal_text.wrap(terminal_text.line(text), room), SAY_LINES)
        yield f"{indent}{stroke(first)}  {told[0]}".rstrip()
        for one in told[1:]:
            yield f"{indent}{' ' * lead}{one}"

    def quote(
        self, level: int, bar: str, text: str, most: int, stroke: Stroke, *, wrap: bool = False
    ) -> Iterator[str]:
        """A foreign text behind a bar: its first lines, and how many more there are."""
        told = terminal_text.lines(text)
        shown = told if self.full else told[:most]
        start = f"{self._indent(level)}{self.brush.faint(bar)} "
        room = self.width - len(self._indent(level)) - len(bar) - 1
        fold = terminal_text.wrap if wrap or self.full else _clipped
        for one in shown:
            for part in fold(one, room):
                yield f"{start}{stroke(part)}".rstrip()
        if len(told) > len(shown):
            rest = f"… {count(len(told) - len(shown), 'more line')}"
            yield f"{start}{self.brush.faint(rest)}"

    def row(self, level: int, head: str, left: str, right: str) -> str:
        """Two foreign texts in what one line has room for."""
        indent, lead = (
            self._indent(level),
            terminal_text.clip(terminal_text.line(head), self.width * 2 // 5),
        )
        room = self.width - len(indent) - terminal_text.columns(lead) - 5
        answer = terminal_text.clip(terminal_text.line(right), room // 2)
        asked = terminal_text.clip(terminal_text.line(left), room - terminal_text.columns(answer))
        return f"{indent}{self.brush.faint(lead)}  {asked} → {answer}"

    def _first(self, told: list[str], most: int) -> list[str]:
        return told if self.full or len(told) <= most else [*told[:most], "…"]

    def _indent(self, level: int) -> str:
        return " " * min(level * STEP, self.width // 4)


def _clipped(text: str, width: int) -> list[str]:
    return [terminal_text.clip(text, width)]
