"""Splits bytes into chunks that end at line ends, so that threads can search them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.search.patterns import PIECE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from atoll.search.mapped_bytes import Memory

    Span = tuple[int, int]

OVERLAP = 1 << 16
"""Bytes by which chunks of one very long line overlap (at most half): the longest match there."""
_LINE_END = 10


def cut(memory: Memory, spans: Iterable[Span], size: int = PIECE) -> Iterator[Span]:
    """Yield the chunks of these spans, in order."""
    for start, end in spans:
        at = start
        while at < end:
            stop, following = _next(memory, at, end, size)
            yield at, stop
            at = following


def _next(memory: Memory, at: int, end: int, size: int) -> Span:
    stop = at + size
    if stop >= end:
        return end, end
    line_end = memory.find_last_byte(_LINE_END, at, stop)
    if line_end >= 0:
        return line_end + 1, line_end + 1
    return stop, stop - min(OVERLAP, size // 2)


def whole_lines(memory: Memory, spans: Iterable[Span], within: Span) -> list[Span]:
    """Return the spans extended to whole lines (by a chunk at most), and joined if they touch."""
    grown: list[Span] = []
    for start, end in spans:
        first, last = _grow(memory, max(start, within[0]), min(end, within[1]), within)
        if grown and first <= grown[-1][1]:
            first, _ = grown.pop()
        if first < last:
            grown.append((first, last))
    return grown


def _grow(memory: Memory, start: int, end: int, within: Span) -> Span:
    lowest, highest = max(start - PIECE, within[0]), min(end + PIECE, within[1])
    line_end = memory.find_last_byte(_LINE_END, lowest, start)
    first = line_end + 1 if line_end >= 0 else lowest
    line_end = memory.find_byte(_LINE_END, end, highest)
    return first, line_end + 1 if line_end >= 0 else highest
