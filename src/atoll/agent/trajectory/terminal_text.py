"""Makes text of guests and models safe for a terminal, measures its columns, and colours it.

# SECURITY: text from `line` or `lines` cannot move the cursor, set a title, change the direction of
# writing, hide itself or begin a new line.
"""

from __future__ import annotations

import os
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

TAB = 4
_ENDS = str.maketrans({"\x0b": "\n", "\x0c": "\n", "\x85": "\n", "\u2028": "\n", "\u2029": "\n"})


def lines(text: str) -> list[str]:
    """Return the text's lines, each made safe, without blank ones at the end."""
    plain = text.replace("\r\n", "\n").translate(_ENDS).rstrip()
    lines = plain.split("\n") if plain else []
    return lines if "".join(lines).isprintable() else [_visible(text) for text in lines]


def line(text: str) -> str:
    """Return the text as one safe line: any white space becomes one space."""
    return _visible(" ".join(text.split()))


def columns(text: str) -> int:
    """Return how many columns a safe text takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def clip(text: str, width: int) -> str:
    """Return a safe text in at most `width` columns; an ellipsis marks a cut."""
    if len(text) <= width and columns(text) <= width:
        return text
    return _head(text, width - 1) + "…"


def wrap(text: str, width: int) -> list[str]:
    """Return a safe line as lines of at most `width` columns, broken at spaces if possible."""
    done, rest = [], text
    while len(rest) > width or columns(rest) > width:
        head = _head(rest, width) or rest[:1]
        space = head.rfind(" ", len(head) // 3)
        cut = space if space > 0 else len(head)
        done.append(rest[:cut])
        rest = rest[cut:].lstrip(" ")
    return [*done, rest]


def _head(text: str, width: int) -> str:
    used = 0
    for at, char in enumerate(text[: 2 * width]):  # limits combining marks, which take no column
        used += _width(char)
        if used > width:
            return text[:at]
    return text[: 2 * width]


def _visible(text: str) -> str:
    flat = text.expandtabs(TAB)
    return flat if flat.isprintable() else "".join(map(_shown, flat))


def _shown(char: str) -> str:
    if char.isprintable():
        return char
    if unicodedata.category(char) == "Zs":
        return " "
    return char.encode("unicode_escape").decode()


def _width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


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
