"""Measures rows: ours and theirs in turn, round by round, so that noise affects both alike."""

from __future__ import annotations

import random
import statistics
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import atoll
from bench.rows import UnavailableError

if TYPE_CHECKING:
    from bench.rows import Probe, Row, Scale

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the table: the numbers of every round, or why there are none."""

    row: Row
    samples: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""
    failed: bool = False

    @property
    def ours(self) -> float:
        """Our median, minus that of `minus` if there is one."""
        taken_off = statistics.median(self.samples.get("minus", [0.0]))
        return statistics.median(self.samples["ours"]) - taken_off

    @property
    def theirs(self) -> float:
        """Their median."""
        return statistics.median(self.samples["theirs"])

    @property
    def ratio(self) -> float:
        """Ours as a multiple of theirs: below 1 is better."""
        return self.ours / self.theirs


def measure(row: Row, scale: Scale, progress: Progress) -> Result:
    """Run every arm once unmeasured, then in rounds. A failing row does not stop the others."""
    rounds = scale.rounds(row.rounds)
    try:
        with row.open(scale) as arms:
            return Result(row=row, samples=_interleave(arms.probes(), rounds, progress))
    except (UnavailableError, atoll.BackendUnavailableError) as exc:
        return Result(row=row, note=str(exc))
    except Exception as exc:
        traceback.print_exc()
        return Result(row=row, note=f"FAILED: {type(exc).__name__}", failed=True)


def _interleave(
    probes: dict[str, Probe], rounds: int, progress: Progress
) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in probes}
    order, dice = list(probes.items()), random.Random(1)
    for done in range(rounds + 1):
        progress(done, rounds)
        dice.shuffle(order)  # random order: the arm that runs after another's clean-up is slower
        for name, probe in order:
            samples[name].append(probe())
    return {name: numbers[1:] for name, numbers in samples.items()}  # the first round warms up
