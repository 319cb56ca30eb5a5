"""Finds given texts in bytes, in time linear in the bytes, whatever the texts are.

`bytes.find` alone is not enough: where a text overlaps itself ("----"), starting it anew at each
byte takes time quadratic in the text's length.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SMALL, _LARGE, _SHORT = 2_500, 30_000, 100
"""Between these sizes CPython's `find` takes data times text, if the text is not short."""


class Needle:
    """A text to find."""

    __slots__ = ("__dict__", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield where the text is; occurrences that overlap may be yielded as one span."""
        size, start = len(self.text), self._find(data, 0)
        while start >= 0:
            end = self._run_end(data, start + size)
            yield start, end
            start = self._find(data, end - size + self._step)

    def begun(self, data: bytes) -> int:
        """Return how many bytes at the end of the data may be the beginning of the text."""
        size = len(self.text)
        tail = data[max(0, len(data) - size + 1) :]
        first = tail.find(self.text[:1])
        if first < 0:
            return 0
        borders, text, matched = self._borders, self.text, 0
        for byte in tail[first:]:
            while matched and text[matched] != byte:
                matched = borders[matched - 1]
            if text[matched] == byte:
                matched += 1
        return matched

    @cached_property
    def period(self) -> int:
        """The least distance at which the text overlaps itself."""
        return len(self.text) - self._borders[-1]

    @cached_property
    def _step(self) -> int:
        """The least distance from the last occurrence of a run to the next one.

        It is a distance at which the text overlaps itself. Those that are no multiples of the
        period are longer than the rest of the text without one period (Fine and Wilf).
        """
        size, period = len(self.text), self.period
        return size - period + 1 if size >= 2 * period else period

    @cached_property
    def _borders(self) -> list[int]:
        """For each beginning of the text: the length of its longest end that also begins it."""
        text, borders, matched = self.text, [0], 0
        for byte in text[1:]:
            while matched and text[matched] != byte:
                matched = borders[matched - 1]
            if text[matched] == byte:
                matched += 1
            borders.append(matched)
        return borders

    def _run_end(self, data: bytes, end: int) -> int:
        """Return where a run of overlapping occurrences ends, of which the first ends at `end`."""
        period = self.period
        if 2 * period > len(self.text):
            return end
        for step in (len(self.text) // period * period, period):
            again = self.text[-step:]
            while data.startswith(again, end):
                end += step
        return end

    def _find(self, data: bytes, start: int) -> int:
        if len(self.text) < _SHORT or not _SMALL < len(data) - start < _LARGE:
            return data.find(self.text, start)
        padded = data[start:].ljust(_LARGE, b"\0")
        found = padded.find(self.text)
        return found + start if found >= 0 else -1
