"""Shows results: a table for people, ratios first, and JSON for programs."""

from __future__ import annotations

import os
import platform
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.harness import Result
    from bench.rows import Goal, Scale

HEADINGS = ("ratio", "goal", "met", "what", "ours", "against", "theirs", "n")
RIGHT_ALIGNED = frozenset({"ratio", "ours", "theirs", "n"})
GAP = "  "


def as_text(results: list[Result], scale: Scale) -> str:
    """Return the table, in monospace columns."""
    lines = [HEADINGS, *(_cells(result, scale) for result in results)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_line(cells, widths) for cells in lines)


def as_json(results: list[Result], scale: Scale) -> dict[str, Any]:
    """Return the results as JSON, with facts about the machine."""
    return {
        "quick": scale.quick,
        "context_bytes": scale.context_bytes,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "rows": [_record(result, scale) for result in results],
    }


def is_met(result: Result, scale: Scale) -> bool | None:
    """Return whether a goal is reached; None if there is none for this run."""
    goal = result.row.goal
    if goal is None or result.note or (scale.quick and goal.at_full_size):
        return None
    near_enough = goal.ratio is None or result.ratio <= goal.ratio
    small_enough = goal.value is None or result.ours <= goal.value
    large_enough = goal.floor is None or result.ours >= goal.floor
    fast_enough = goal.times is None or result.ratio >= goal.times
    return near_enough and small_enough and large_enough and fast_enough


def quantity(value: float, unit: str) -> str:
    """Return seconds or bytes with a suitable unit; other numbers unchanged."""
    if unit == "bytes":
        return f"{value / 1e6:,.1f} MB"
    if unit == "share":
        return f"{value:.3f}"
    if unit != "s":
        return f"{value:,.0f} {unit}"
    for size, name in ((1.0, "s"), (1e-3, "ms")):
        if abs(value) >= size:
            return f"{value / size:,.2f} {name}"
    return f"{value * 1e6:,.0f} us"


def _cells(result: Result, scale: Scale) -> tuple[str, ...]:
    row = result.row
    what, against = (text.format(size=scale.size) for text in (row.what, row.against))
    goal = _goal_text(row.goal, row.unit)
    if result.note:
        return ("-", goal, "-", what, result.note, against, "-", "0")
    return (
        _ratio_text(result.ratio),
        goal,
        _met_text(result, scale),
        what,
        quantity(result.ours, row.unit),
        against,
        quantity(result.theirs, row.unit),
        str(len(result.samples["ours"])),
    )


def _goal_text(goal: Goal | None, unit: str) -> str:
    if goal is None:
        return "-"
    ratio = [] if goal.ratio is None else [f"<= {_ratio_text(goal.ratio)}"]
    most = [] if goal.value is None else [f"<= {quantity(goal.value, unit)}"]
    least = [] if goal.floor is None else [f">= {quantity(goal.floor, unit)}"]
    times = [] if goal.times is None else [f">= {_ratio_text(goal.times)}"]
    return ", ".join(ratio + most + least + times)


def _ratio_text(ratio: float) -> str:
    """Return a ratio as text; below a half as a fraction, because goals are such as "a tenth"."""
    return f"1/{1 / ratio:.3g}" if 0 < ratio < 0.5 else f"{ratio:.2f}"


def _met_text(result: Result, scale: Scale) -> str:
    met = is_met(result, scale)
    if met is None:
        return "-" if result.row.goal is None else "(full run)"
    return "yes" if met else "NO"


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    padded = (
        text.rjust(width) if heading in RIGHT_ALIGNED else text.ljust(width)
        for heading, text, width in zip(HEADINGS, cells, widths, strict=True)
    )
    return GAP.join(padded).rstrip()


def _record(result: Result, scale: Scale) -> dict[str, Any]:
    row = result.row
    record: dict[str, Any] = {
        "name": row.name,
        "what": row.what.format(size=scale.size),
        "against": row.against.format(size=scale.size),
        "unit": row.unit,
        "goal_ratio": row.goal.ratio if row.goal else None,
        "goal_value": row.goal.value if row.goal else None,
        "goal_floor": row.goal.floor if row.goal else None,
        "goal_times": row.goal.times if row.goal else None,
    }
    if result.note:
        return {**record, "note": result.note}
    measured = {"ours": result.ours, "theirs": result.theirs, "ratio": result.ratio}
    spread = {name: _quartiles(numbers) for name, numbers in result.samples.items()}
    n = len(result.samples["ours"])
    return {**record, **measured, "met": is_met(result, scale), "n": n, "quartiles": spread}


def _quartiles(numbers: list[float]) -> list[float]:
    return statistics.quantiles(numbers, n=4, method="inclusive")
