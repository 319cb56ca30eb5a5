"""Patterns for paths: `*`, `?`, `[a-z]`, `{a,b}` within a name, `**` over any number of folders."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Match, Optional

    FitsName = Callable[[str], Optional[Match[str]]]

MAX_ALTERNATIVES = 256
LONGEST = 4096
"""Characters: as many as a path can have."""
_ANY_FOLDERS = None
"""What `**` becomes."""


class Glob:
    """A pattern, ready to be matched: in time that no pattern can blow up."""

    def __init__(self, pattern: str) -> None:
        self._ways = [_segments(choice) for choice in _braces(pattern.strip("/"))]

    def matches(self, path: str) -> bool:
        """Return whether a relative path matches."""
        names = path.split("/")
        return any(_fits(names, way) for way in self._ways)


def chooser(pattern: str | None) -> Callable[[str], bool]:
    """Return whether a path matches; a pattern without a slash matches names in any folder."""
    if pattern is None:
        return lambda _path: True
    fits = Glob(pattern).matches
    if "/" in pattern.strip("/"):
        return fits
    return lambda path: fits(path.rpartition("/")[2])


def _segments(pattern: str) -> list[FitsName | None]:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if parts[-1:] == ["**"]:
        parts.append("*")  # what is below, not the folder itself
    return [_ANY_FOLDERS if part == "**" else _name(part) for part in parts]


def _fits(names: list[str], way: list[FitsName | None]) -> bool:
    """Name by name; where it fails, the last `**` takes one more, and no earlier one ever need."""
    at = step = 0
    last: tuple[int, int] | None = None
    while at < len(names):
        fits = way[step] if step < len(way) else None
        if step < len(way) and fits is _ANY_FOLDERS:
            last, step = (at, step), step + 1
        elif fits is not None and fits(names[at]):
            at, step = at + 1, step + 1
        elif last is not None:
            last = (last[0] + 1, last[1])
            at, step = last[0], last[1] + 1
        else:
            return False
    return step == len(way)


def _name(part: str) -> FitsName:
    """Match one name. The text between two stars is searched once: there is no backtracking."""
    first, *others = _between_stars(part)
    text = first
    for index, between in enumerate(others[:-1]):
        text += "(?=(?P<g{0}>.*?{1}))(?P=g{0})".format(index, between)
    text += "".join(".*" + last for last in others[-1:])
    return re.compile(text, re.DOTALL).fullmatch


def _between_stars(part: str) -> list[str]:
    """Return the parts of a pattern between its stars, as regular expressions."""
    pieces, at = [""], 0
    while at < len(part):
        char = part[at]
        end = part.find("]", at + 2) if char == "[" else -1
        if char == "*":
            pieces += [""] if pieces[-1] or len(pieces) == 1 else []
        elif end > 0:
            pieces[-1] += _one_of(part[at + 1 : end])
            at = end
        else:
            pieces[-1] += "." if char == "?" else re.escape(char)
        at += 1
    return pieces


def _one_of(inside: str) -> str:
    negated = inside[:1] in ("!", "^")
    body = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside[1:] if negated else inside)
    return "[{}{}]".format("^" if negated else "", body)


def _braces(pattern: str) -> list[str]:
    """Return every choice of `{a,b}`; a brace that is not closed stands for itself."""
    pending, done = [pattern], []
    if len(pattern) > LONGEST:
        raise ValueError("the pattern has more than {:,} characters".format(LONGEST))
    while pending:
        first = pending.pop()
        start, end = _innermost(first)
        if start < 0:
            done.append(first)
            continue
        head, tail = first[:start], first[end + 1 :]
        pending += [head + choice + tail for choice in first[start + 1 : end].split(",")]
        if len(pending) + len(done) > MAX_ALTERNATIVES:
            raise ValueError("the pattern has more than {} alternatives".format(MAX_ALTERNATIVES))
    return done


def _innermost(pattern: str) -> tuple[int, int]:
    end = pattern.find("}")
    while end >= 0:
        start = pattern.rfind("{", 0, end)
        if start >= 0 and "," in pattern[start:end]:
            return start, end
        end = pattern.find("}", end + 1)
    return -1, -1
