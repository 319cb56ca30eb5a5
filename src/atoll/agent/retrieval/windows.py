"""Splits by size: texts without a structure into windows, and long units into parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.agent.retrieval.source import Source
    from atoll.agent.retrieval.types import Unit

LONGEST_CODE, LONGEST_SECTION = 6_000, 2_000
"""Characters of a unit's body."""
_WINDOW = 1_500


def windows(source: Source, kind: str = "lines") -> list[Unit]:
    """Return a text as windows of lines, which end at an empty line if there is one."""
    spans = list(_spans(source.text, 0, len(source.text), _WINDOW))
    return [_part(source, source.unit(kind, source.stem, (1, 1)), *span) for span in spans]


def bounded(source: Source, units: list[Unit], longest: int) -> Iterator[Unit]:
    """Return the units, with long ones split into parts of the same name."""
    for unit in units:
        if len(unit.body) <= longest:
            yield unit
        elif unit.end - unit.start == len(unit.body):
            for span in _spans(source.text, unit.start, unit.end, longest):
                yield _part(source, unit, *span)
        else:  # a class without its methods: its lines are not contiguous
            for start, end in _spans(unit.body, 0, len(unit.body), longest):
                yield replace(unit, body=unit.body[start:end])


def _part(source: Source, unit: Unit, start: int, end: int) -> Unit:
    first, last = source.line_of(start), source.line_of(max(start, end - 1))
    body = source.text[start:end]
    return replace(unit, body=body, start_line=first, end_line=last, start=start, end=end)


def _spans(text: str, start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    while start < end:
        stop = min(end, start + size)
        if stop < end:
            stop = _good_end(text, start, stop)
        if text[start:stop].strip():
            yield start, stop
        start = stop


def _good_end(text: str, start: int, stop: int) -> int:
    """Return where to split: after an empty line in the second half, else any line, else `stop`."""
    half = start + (stop - start) // 2
    for ending in ("\n\n", "\n"):
        at = text.rfind(ending, half, stop)
        if at >= 0:
            return at + len(ending)
    return stop
