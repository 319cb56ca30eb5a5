"""Measures rows: ours and theirs in turn, round by round, so that a noisy machine is fair to both.

A row is one small function; every file of rows has some:

    @row(what="start", against="python -c", rounds=30)
    def start(scale: Scale) -> Iterator[Arms]:
        yield Arms(ours=timed(...), theirs=timed(...))

What stands before the `yield` sets up, what stands after it clears away.
"""

from __future__ import annotations

import contextlib
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

FULL_CONTEXT, QUICK_CONTEXT = 10**9, 64 * 10**6
QUICK_SHARE, FEWEST_ROUNDS = 10, 3

Probe = Callable[[], float]
"""Does the thing once; returns what it took, in the row's unit."""
Progress = Callable[[int, int], None]


class UnavailableError(Exception):
    """A row cannot be measured here; the message stands in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large a run is."""

    quick: bool

    @property
    def context_bytes(self) -> int:
        """Size of the context in the rows about contexts."""
        return QUICK_CONTEXT if self.quick else FULL_CONTEXT

    @property
    def size(self) -> str:
        """The same as text, for `{size}` in a row's words."""
        return f"{self.context_bytes // 10**6:,} MB"

    def rounds(self, full: int) -> int:
        """How many rounds of a row that has `full` in a full run."""
        return max(FEWEST_ROUNDS, full // QUICK_SHARE) if self.quick else full


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """At most `ratio` times theirs, and at most `value` in the row's unit."""

    ratio: float
    value: float | None = None
    at_full_size: bool = False
    """Whether it only means something with the context of a full run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """What is measured in turn. `minus` comes off ours: the same without what the row is about."""

    ours: Probe
    theirs: Probe
    minus: Probe | None = None

    def probes(self) -> dict[str, Probe]:
        """The arms by name, in the order of a round."""
        arms = {"ours": self.ours, "theirs": self.theirs}
        return arms if self.minus is None else {**arms, "minus": self.minus}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table, not measured yet."""

    name: str
    what: str
    against: str
    rounds: int
    unit: str
    goal: Goal | None
    open: Callable[[Scale], AbstractContextManager[Arms]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the table: every round's numbers, or why there are none."""

    row: Row
    samples: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""
    failed: bool = False

    @property
    def ours(self) -> float:
        """Our median, less that of `minus` where there is one."""
        taken_off = statistics.median(self.samples.get("minus", [0.0]))
        return statistics.median(self.samples["ours"]) - taken_off

    @property
    def theirs(self) -> float:
        """Their median."""
        return statistics.median(self.samples["theirs"])

    @property
    def ratio(self) -> float:
        """Ours as a multiple of theirs: below 1 is better than them."""
        return self.ours / self.theirs


ROWS: dict[str, Row] = {}


def row(
    *, what: str, against: str, rounds: int, unit: str = "s", goal: Goal | None = None
) -> Callable[[Callable[[Scale], Iterator[Arms]]], Callable[[Scale], Iterator[Arms]]]:
    """Put the function into the table, under its own name."""

    def add(function: Callable[[Scale], Iterator[Arms]]) -> Callable[[Scale], Iterator[Arms]]:
        name = function.__name__.replace("_", "-")
        opener = contextlib.contextmanager(function)
        ROWS[name] = Row(
            name=name, what=what, against=against, rounds=rounds, unit=unit, goal=goal, open=opener
        )
        return function

    return add


def timed(work: Callable[[], object]) -> Probe:
    """A probe that tells how many seconds `work` takes."""

    def probe() -> float:
        started = time.perf_counter()
        kept = work()  # let go of only after the clock is read
        took = time.perf_counter() - started
        del kept
        return took

    return probe


def measure(row: Row, scale: Scale, progress: Progress) -> Result:
    """Every arm once unmeasured, then round by round. A row that fails does not stop the others."""
    rounds = scale.rounds(row.rounds)
    try:
        with row.open(scale) as arms:
            return Result(row=row, samples=_interleave(arms.probes(), rounds, progress))
    except UnavailableError as exc:
        return Result(row=row, note=str(exc))
    except Exception as exc:
        traceback.print_exc()
        return Result(row=row, note=f"FAILED: {type(exc).__name__}", failed=True)


def _interleave(
    probes: dict[str, Probe], rounds: int, progress: Progress
) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in probes}
    for done in range(rounds + 1):
        progress(done, rounds)
        for name, probe in probes.items():
            samples[name].append(probe())
    return {name: numbers[1:] for name, numbers in samples.items()}  # the first warmed up
