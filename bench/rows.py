"""A row of the table: one small function that returns two things to measure.

    @row(what="start", against="python -c", rounds=30)
    def start(scale: Scale) -> Iterator[Arms]:
        yield Arms(ours=timed(...), theirs=timed(...))

What stands before the `yield` sets up, what stands after it clears away.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

FULL_CONTEXT, QUICK_CONTEXT = 10**9, 64 * 10**6
QUICK_SHARE, FEWEST_ROUNDS = 10, 2

Probe = Callable[[], float]
"""Runs the operation once; returns its cost in the row's unit."""


class UnavailableError(Exception):
    """A row cannot be measured here; the table shows the message instead."""


def needs(*modules: str, extra: str) -> None:
    """Raise UnavailableError, which says what to type, unless all are installed."""
    if not all(map(find_spec, modules)):
        raise UnavailableError(f"not installed: pip install '.[{extra}]'")


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
        """The size of the context as text, for `{size}` in a row's title."""
        return f"{self.context_bytes // 10**6:,} MB"

    def rounds(self, full: int) -> int:
        """Return the number of rounds of a row that has `full` in a full run."""
        return max(FEWEST_ROUNDS, full // QUICK_SHARE) if self.quick else full


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """At most `ratio` times theirs, and at most `value` in the row's unit.

    A rate, which is the better the higher, has a `floor`, or is at least `times` theirs.
    """

    ratio: float | None = None
    value: float | None = None
    floor: float | None = None
    times: float | None = None
    at_full_size: bool = False
    """Whether it applies only to the context of a full run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """The probes of a row, measured in turn. `minus`, a baseline, is subtracted from ours."""

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


ROWS: dict[str, Row] = {}


def row(
    *,
    what: str,
    against: str,
    rounds: int,
    unit: str = "s",
    goal: Goal | None = None,
    name: str = "",
) -> Callable[[Callable[[Scale], Iterator[Arms]]], Callable[[Scale], Iterator[Arms]]]:
    """Add the function to the table, by its own name unless another is given."""

    def add(function: Callable[[Scale], Iterator[Arms]]) -> Callable[[Scale], Iterator[Arms]]:
        key = name or function.__name__.replace("_", "-")
        opener = contextlib.contextmanager(function)
        ROWS[key] = Row(
            name=key, what=what, against=against, rounds=rounds, unit=unit, goal=goal, open=opener
        )
        return function

    return add


def timed(work: Callable[[], object], *, times: int = 1) -> Probe:
    """Return a probe of the seconds that `work` takes, as the mean of `times` runs."""

    def probe() -> float:
        started = time.perf_counter()
        for _ in range(times):
            kept = work()  # the last result is freed only after the clock is read
        took = time.perf_counter() - started
        del kept
        return took / times

    return probe
