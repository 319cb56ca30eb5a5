"""Text of guests and models made harmless for a terminal, and measured in its columns.

# SECURITY: nothing that passes through `line` or `lines` moves a cursor, sets a title, turns the
# direction of writing, hides itself or begins a line of ours.
"""

from __future__ import annotations

import unicodedata

TAB = 4
_ENDS = str.maketrans({"\x0b": "\n", "\x0c": "\n", "\x85": "\n", "\u2028": "\n", "\u2029": "\n"})


def lines(text: str) -> list[str]:
    """The text's lines, each harmless; blank ones at the end are left out."""
    plain = text.replace("\r\n", "\n").translate(_ENDS).rstrip()
    told = plain.split("\n") if plain else []
    return told if "".join(told).isprintable() else [_visible(one) for one in told]


def line(text: str) -> str:
    """The text as one harmless line: white space of any kind is one space."""
    return _visible(" ".join(text.split()))


def columns(text: str) -> int:
    """How many columns a harmless text takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def clip(text: str, width: int) -> str:
    """A harmless text in at most `width` columns; an ellipsis says that there is more."""
    if len(text) <= width and columns(text) <= width:
        return text
    return _head(text, width - 1) + "…"


def wrap(text: str, width: int) -> list[str]:
    """A harmless line as lines of at most `width` columns, broken at spaces where there are any."""
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
    for at, char in enumerate(text[: 2 * width]):  # marks that take no column cannot heap up
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
