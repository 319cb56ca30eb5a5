"""Record which ranges of a context were searched and which a model was shown."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Any, Literal

from atoll.concurrency import forks
from atoll.errors import ConfigError

MAX_RANGES = 1 << 16


@dataclass(slots=True)
class Ranges:
    """Ranges in order that do not touch each other. Not thread-safe."""

    most: int = MAX_RANGES
    _starts: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)

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
        if len(self._starts) > self.most:
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


CELLS = 64
UNSEEN, SCANNED, SHOWN = ".", "-", "#"
LEGEND = f"{SHOWN} shown  {SCANNED} searched  {UNSEEN} unseen"

Kind = Literal["scanned", "shown"]
KINDS: tuple[Kind, ...] = ("scanned", "shown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of a context was searched and shown."""

    length: int
    scanned: int
    """Characters that were searched or shown."""
    shown: int
    """Characters that the model was shown."""
    map: str
    """One sign for each of equal parts of the context: shown, else searched, else unseen."""

    @property
    def scanned_share(self) -> float:
        """From 0 to 1; all of a context that is empty."""
        return self.scanned / self.length if self.length else 1.0

    @property
    def shown_share(self) -> float:
        """From 0 to 1; all of a context that is empty."""
        return self.shown / self.length if self.length else 1.0

    def render(self) -> str:
        """Return one line for a terminal or a model, with a legend of its signs."""
        shown, scanned = _percent(self.shown_share), _percent(self.scanned_share)
        of = f"of {self.length:,} characters"
        return f"[{self.map}] shown {shown}, searched {scanned} {of} ({LEGEND})"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "length": self.length,
            "scanned": self.scanned,
            "shown": self.shown,
            "scanned_share": self.scanned_share,
            "shown_share": self.shown_share,
            "map": self.map,
        }


class CoverageLog:
    """Records the scanned and shown parts of a context; several threads may use it."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._lock = forks.new_lock()
        self._ranges: dict[Kind, Ranges] = {"scanned": Ranges(), "shown": Ranges()}

    def scan(self, start: int, end: int) -> None:
        """Record that these characters were searched."""
        self._add("scanned", start, end)

    def show(self, start: int, end: int) -> None:
        """Record that the model was shown these characters."""
        self._add("scanned", start, end)
        self._add("shown", start, end)

    def merge(self, other: CoverageLog) -> None:
        """Add the parts seen through another ledger of the same context."""
        for kind in KINDS:
            for start, end in other.ranges(kind):
                self._add(kind, start, end)

    def ranges(self, kind: Kind) -> tuple[tuple[int, int], ...]:
        """Return the ranges that were `scanned` or `shown`, in order."""
        if kind not in self._ranges:
            raise ConfigError(f"unknown kind of ranges {kind!r}: use 'scanned' or 'shown'")
        with self._lock:
            return tuple(self._ranges[kind])

    def coverage(self) -> Coverage:
        """Return how much was seen until now."""
        with self._lock:
            return Coverage(
                length=self.length,
                scanned=self._ranges["scanned"].total,
                shown=self._ranges["shown"].total,
                map="".join(map(self._sign, range(min(CELLS, self.length)))),
            )

    def _add(self, kind: Kind, start: int, end: int) -> None:
        with self._lock:
            self._ranges[kind].add(max(start, 0), min(end, self.length))

    def _sign(self, cell: int) -> str:
        cells = min(CELLS, self.length)
        part = self.length * cell // cells, self.length * (cell + 1) // cells
        if self._ranges["shown"].meets(*part):
            return SHOWN
        return SCANNED if self._ranges["scanned"].meets(*part) else UNSEEN


def _percent(share: float) -> str:
    """Return a share in percent: 100 % only if it is all, 0 % only if it is nothing."""
    if 0 < share < 0.001:
        return "<0.1%"
    return ">99.9%" if 0.999 < share < 1 else f"{100 * share:.1f}%"
