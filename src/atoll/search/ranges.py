"""A set of offsets as ranges: joined if they touch, and limited in number."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

MOST_RANGES = 1 << 16


class Ranges:
    """Ranges in order that do not touch each other. Not thread-safe."""

    def __init__(self, most: int = MOST_RANGES) -> None:
        self._most = most
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> zip[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def total(self) -> int:
        """How many offsets are in the ranges."""
        return sum(self._ends) - sum(self._starts)

    def add(self, start: int, end: int) -> None:
        """Add the offsets from `start` up to `end`."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]
        if len(self._starts) > self._most:
            self._forget_smallest()

    def meets(self, start: int, end: int) -> bool:
        """Return whether any offset from `start` up to `end` is in the ranges."""
        number = bisect_right(self._ends, start)
        return number < len(self._starts) and self._starts[number] < end

    def _forget_smallest(self) -> None:
        """Drop the smaller half of the ranges: the set then has too few offsets, never too many."""
        sizes = [end - start for start, end in self]
        largest = sorted(range(len(sizes)), key=sizes.__getitem__)[len(sizes) // 2 :]
        kept = sorted(largest)
        self._starts = [self._starts[number] for number in kept]
        self._ends = [self._ends[number] for number in kept]
