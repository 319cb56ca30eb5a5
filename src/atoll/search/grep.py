"""Finds the lines of a context that match a pattern: in order, in threads, within limits.

A line is one hit. If a line continues for more than REACH bytes after a hit, the search goes on
there, so that a context without line ends can be searched too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.search.blocks import SECONDS
from atoll.search.chunks import cut
from atoll.search.thread_pool import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.search.encoded import Characters, Encoded
    from atoll.search.patterns import Finder

    Span = tuple[int, int]

MOST_HITS = 10_000
WIDTH = 200
"""Characters of a line that a hit shows, around the match."""
REACH = 400
_BEFORE = WIDTH // 4
_LINE_END = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A line that matches; offsets are characters of the context."""

    line: int
    start: int
    end: int
    text: str
    """The line, or the part of a long line around the match."""
    at: int
    """Offset at which `text` begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grep:
    """The hits of a search."""

    hits: tuple[Hit, ...]
    more: bool
    """Whether there may be more hits: there are too many, or the time was over."""
    total: int
    """How many hits there are; a lower bound if not `counted`."""
    counted: bool = True
    scanned: Span
    """The ranges of characters that were searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The matches in one chunk, and how far it was searched."""

    spans: list[Span]
    end: int
    whole: bool = True
    count: int = 0
    """How many matches there are, if only the count is needed."""


class Scan:
    """One search of some spans of the bytes."""

    def __init__(
        self, finder: Finder, text: Encoded, *, most: int, seconds: float = SECONDS
    ) -> None:
        self._first, self._memory, self._utf8 = finder.first, text.memory, text.utf8
        self._piece, self._cut_short = finder.piece, False
        self._room, self._until = most + 1, time.monotonic() + seconds

    def run(self, parts: list[Span]) -> tuple[list[Span], int | None]:
        """Return the matches, up to one more than asked for, and where the search stopped early."""
        work = ThreadPool(
            self._search, self._in_time(parts), lambda one: len(one.spans), self._room
        )
        found: list[Span] = []
        resume, ended = 0, parts[0][0] if parts else 0
        for piece in work.run():
            found += [span for span in piece.spans if span[0] >= resume]
            resume = self._resume(found[-1][1], self._memory.size) if found else 0
            ended = piece.end
            if not piece.whole:
                break
        return found[: self._room], ended if self._cut_short else None

    def count(self, parts: list[Span]) -> tuple[int, bool]:
        """Return how many lines match, and whether all parts were searched in time."""
        work = ThreadPool(self._count, self._in_time(parts), lambda _: 0, 1)
        total = sum(piece.count for piece in work.run())
        return total, not self._cut_short

    @property
    def _late(self) -> bool:
        return time.monotonic() > self._until

    def _in_time(self, parts: list[Span]) -> Iterator[Span]:
        for piece in cut(self._memory, parts, self._piece):
            if self._late:
                self._cut_short = True
                return
            yield piece

    def _search(self, piece: Span) -> Piece:
        at, end = piece
        spans: list[Span] = []
        while at < end and len(spans) < self._room:
            span = self._first(self._memory, at, end)
            if span is None:
                break
            spans.append(span)
            at = self._resume(span[1], end)
            if self._late:
                self._cut_short = True
                return Piece(spans=spans, end=at, whole=False)
        return Piece(spans=spans, end=end)

    def _count(self, piece: Span) -> Piece:
        at, end = piece
        number = 0
        while at < end and (span := self._first(self._memory, at, end)) is not None:
            number += 1
            at = self._resume(span[1], end)
            if self._late:
                self._cut_short = True
                break
        return Piece(spans=[], end=at, count=number)

    def _resume(self, at: int, end: int) -> int:
        """Return where the search for the next hit begins after a match that ends at `at`."""
        line_end = self._memory.find_byte(_LINE_END, at, min(at + REACH, end))
        if line_end >= 0:
            return line_end + 1
        at = min(at + REACH, end)
        while self._utf8 and at < end and self._memory.buffer[at] & 0xC0 == 0x80:
            at += 1
        return at


def line_around(characters: Characters, start: int) -> tuple[str, int]:
    """Return the line of a character, or the part of a long line around it, and its offset."""
    left = max(start - WIDTH, 0)
    before = characters.text(left, start).rpartition("\n")[2]
    after = characters.text(start, start + WIDTH).partition("\n")[0]
    if len(before) + len(after) > WIDTH:
        keep = max(_BEFORE, WIDTH - len(after))
        before = before[-keep:]
    return (before + after)[:WIDTH].removesuffix("\r"), start - len(before)


def check_most(most: int) -> None:
    """Raise ConfigError if `most` is not a valid number of hits."""
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MOST_HITS:
        raise ConfigError(f"most must be a whole number from 1 to {MOST_HITS:,}, not {most!r}")
