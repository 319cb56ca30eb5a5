"""The obvious structure of a text: Markdown headers, underlined titles, chapters, file marks."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atoll.search.encoded import Encoded
    from atoll.search.grep import Lines
    from atoll.search.memory import Memory

MAX_SECTIONS = 5_000
_TRIES = 20_000
"""Most lines of a kind that are examined: many lines may only look like headers."""
_LONGEST_TITLE = 200
_LINE_END = 10
_FENCES = (b"\n```", b"\n~~~")
_HASHES = re.compile(r"(#{1,6})[ \t]+(\S.*)")
_UNDERLINE = re.compile(r"={3,}\s*")
_MARK = re.compile(r"={3,}[ \t]*([^=\s][^=]*?)[ \t]*={3,}\s*")
_CHAPTER = re.compile(r"((?:chapter|part|book|section)[ \t]+[\dIVXLC]+\b.*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the text under a title; offsets are characters of the context."""

    title: str
    level: int
    start: int
    end: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Title:
    at: int
    level: int
    text: str


def find_sections(text: Encoded, lines: Lines, length: int) -> tuple[Section, ...]:
    """Return the first sections in order; a section ends where one of its level or above begins."""
    memory = text.memory
    titles = sorted(_titles(memory), key=lambda title: title.at)
    fences = _fences(memory)
    shown = [title for title in titles if bisect_left(fences, title.at) % 2 == 0][:MAX_SECTIONS]
    starts = [text.to_character(title.at) for title in shown]
    ends = _ends([title.level for title in shown], [*starts, length])
    return tuple(
        Section(title=title.text, level=title.level, start=start, end=end, line=lines.of(title.at))
        for title, start, end in zip(shown, starts, ends, strict=True)
    )


def _titles(memory: Memory) -> Iterator[_Title]:
    for beginning, read in _KINDS:
        count = 0
        for at in _line_starts(memory, beginning):
            if (title := read(memory, at)) is not None:
                yield title
                count += 1
            if count >= MAX_SECTIONS:
                break


def _line_starts(memory: Memory, beginning: bytes) -> Iterator[int]:
    """Yield the offsets of lines that begin with this; the first line has no line end before it."""
    if memory.part(0, len(beginning) - 1) == beginning[1:]:
        yield 0
    at = -1
    for _ in range(_TRIES):
        at = memory.find(beginning, at + 1, memory.size)
        if at < 0:
            return
        yield at + 1


def _fences(memory: Memory) -> list[int]:
    return sorted(at for mark in _FENCES for at in _line_starts(memory, mark))


def _ends(levels: list[int], starts: list[int]) -> list[int]:
    """Return for each section the start of the next one of its level or above."""
    ends = [starts[-1]] * len(levels)
    open_ones: list[int] = []
    for number, level in enumerate(levels):
        while open_ones and levels[open_ones[-1]] >= level:
            ends[open_ones.pop()] = starts[number]
        open_ones.append(number)
    return ends


def _line(memory: Memory, at: int) -> str:
    end = memory.find_byte(_LINE_END, at, min(at + 4 * _LONGEST_TITLE, memory.size))
    data = memory.part(at, at + 4 * _LONGEST_TITLE if end < 0 else end)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _header(memory: Memory, at: int) -> _Title | None:
    match = _HASHES.match(_line(memory, at))
    return match and _title(at, len(match[1]), match[2].rstrip().rstrip("#"))


def _underlined(memory: Memory, at: int) -> _Title | None:
    """Return a title: `=== a file ===` itself, or the line above a line of `=` or `-` only."""
    line = _line(memory, at)
    if mark := _MARK.fullmatch(line):
        return _title(at, 1, mark[1])
    above = memory.find_last_byte(_LINE_END, max(at - 1 - _LONGEST_TITLE, 0), max(at - 1, 0)) + 1
    if not _UNDERLINE.fullmatch(line) or not at or at - above > _LONGEST_TITLE:
        return None
    return _title(above, 1, _line(memory, above))


def _chapter(memory: Memory, at: int) -> _Title | None:
    line = _line(memory, at)
    match = _CHAPTER.match(line)
    return match and _title(at, 1, match[1]) if len(line) <= _LONGEST_TITLE else None


def _title(at: int, level: int, text: str) -> _Title | None:
    text = text.strip()[:_LONGEST_TITLE]
    return _Title(at=at, level=level, text=text) if text else None


_KINDS: tuple[tuple[bytes, Callable[[Memory, int], _Title | None]], ...] = (
    (b"\n#", _header),
    (b"\n===", _underlined),
    *(
        (b"\n" + word, _chapter)
        for word in (b"Chapter ", b"CHAPTER ", b"Part ", b"PART ", b"Book ", b"BOOK ", b"Section ")
    ),
)
