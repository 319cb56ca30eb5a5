"""Formats lines for a terminal: indents, wraps and colours them; `show` uses it.

# SECURITY: every text goes through `terminal_text` here, and only here. Lines of text of guests and
# models begin with a bar that Atoll draws, so that they cannot imitate its own lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from atoll.agent.trajectory import terminal_text
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = 2
NARROWEST = 40
"""Least columns; a prefix takes at most three quarters of them."""
SAY_LINES, HEAD = 5, 40
"""Lines of a remark, unless everything is shown, and columns of its heading."""

Stroke = Callable[[str], str]


class Brush(Protocol):
    """Colours text."""

    def good(self, text: str) -> str: ...  # noqa: D102
    def bad(self, text: str) -> str: ...  # noqa: D102
    def warn(self, text: str) -> str: ...  # noqa: D102
    def strong(self, text: str) -> str: ...  # noqa: D102
    def faint(self, text: str) -> str: ...  # noqa: D102


class NoBrush:
    """Returns text unchanged."""

    def good(self, text: str) -> str:
        """Return the text."""
        return text

    bad = warn = strong = faint = good


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """The width of a terminal, its colours, and whether texts are shown in full."""

    width: int
    brush: Brush
    full: bool

    def say(self, level: int, head: str, text: str, stroke: Stroke) -> Iterator[str]:
        """Yield a coloured heading with a text wrapped beside it."""
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
        """Yield the first lines of an untrusted text behind a bar, and how many more there are."""
        told = terminal_text.lines(text)
        shown = told if self.full else told[:most]
        start = f"{self._indent(level)}{self.brush.faint(bar)} "
        room = self.width - len(self._indent(level)) - len(bar) - 1
        fold = terminal_text.wrap if wrap or self.full else _clipped
        for one in shown:
            for part in fold(one, room):
                yield f"{start}{stroke(part)}".rstrip()
        if len(told) > len(shown):
            rest = f"… {counted(len(told) - len(shown), 'more lines')}"
            yield f"{start}{self.brush.faint(rest)}"

    def row(self, level: int, head: str, left: str, right: str) -> str:
        """Return one line with two untrusted texts, both cut to fit."""
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
