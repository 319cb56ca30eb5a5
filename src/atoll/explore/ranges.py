"""Sets of offsets as ranges: joined where they touch, and never more than so many."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

MOST_RANGES = 1 << 16


class Ranges:
    """Ranges in order, none touching another. Not for several threads."""

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
        """How many offsets are in them."""
        return sum(self._ends) - sum(self._starts)

    def add(self, start: int, end: int) -> None:
        """Take in what lies between the two."""
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
        """Whether any offset between the two is in them."""
        number = bisect_right(self._ends, start)
        return number < len(self._starts) and self._starts[number] < end

    def _forget_smallest(self) -> None:
        """Half as many, the large ones: what is said to be in them is, and a little more may be."""
        sizes = [end - start for start, end in self]
        largest = sorted(range(len(sizes)), key=sizes.__getitem__)[len(sizes) // 2 :]
        kept = sorted(largest)
        self._starts = [self._starts[number] for number in kept]
        self._ends = [self._ends[number] for number in kept]
