"""Results as a table: right answers by family and arm, forced and unanswered ones apart."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from evals.asking import Result

COLUMNS = (
    "family", "arm", "tasks", "right", "95 %", "answered", "forced or refused", "unanswered",
    "tokens", "calls", "CPU seconds", "seconds",
)  # fmt: skip
"""Tokens, calls and seconds are means over the tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A task answered by one arm."""

    family: str
    arm: str
    right: bool
    result: Result
    score: float = 0.0
    """Of a benchmark, from 0 to 1."""


def table(rows: Iterable[Row]) -> str:
    """Return Markdown: one line for each family and arm, then one for each arm."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for one in rows:
        groups[one.family, one.arm].append(one)
        groups["all", one.arm].append(one)
    order = sorted(groups, key=lambda key: key[0] == "all")
    head = [_cells(COLUMNS), _cells(["---"] * len(COLUMNS))]
    return "\n".join([*head, *(_line(family, arm, groups[family, arm]) for family, arm in order)])


def _line(family: str, arm: str, rows: Sequence[Row]) -> str:
    ended = [one.result.ended for one in rows]
    cut = sum(one in ("forced", "refused") for one in ended)
    right = sum(one.right for one in rows)
    low, high = wilson(right, len(rows))
    cells: list[object] = [family, arm, len(rows), right, f"{low:.0%} to {high:.0%}"]
    cells += [ended.count("answered"), cut, _unanswered(rows)]
    means = ("tokens", "calls", "cpu_seconds", "seconds")
    return _cells([*cells, *(f"{_mean(rows, name):,.0f}" for name in means)])


def wilson(right: int, tasks: int, z: float = 1.96) -> tuple[float, float]:
    """Return the interval in which the share of right answers lies with 95 %, by Wilson's score."""
    if not tasks:
        return 0.0, 1.0
    share, spread = right / tasks, z * z / tasks
    middle = (share + spread / 2) / (1 + spread)
    around = z / (1 + spread) * math.sqrt(share * (1 - share) / tasks + spread / tasks / 4)
    return max(0.0, middle - around), min(1.0, middle + around)


def _unanswered(rows: Sequence[Row]) -> str:
    """Return how many have no answer, and how many of them because a limit of time was reached."""
    count = sum(one.result.ended == "unanswered" for one in rows)
    stopped = sum(one.result.stopped for one in rows)
    return f"{count} ({stopped} stopped)" if stopped else f"{count}"


def _cells(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _mean(rows: Sequence[Row], name: str) -> float:
    return float(sum(getattr(one.result, name) for one in rows)) / len(rows)
