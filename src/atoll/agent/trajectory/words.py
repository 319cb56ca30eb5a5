"""Formats numbers, costs and times of a trajectory, for the terminal and the page."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from atoll.agent.trajectory import events
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from atoll.agent.trajectory.events import Event, FinalGiven, Planned, Usage
    from atoll.agent.trajectory.tree import Node, Totals

CELLS = ".-#"
"""Cells of a coverage map: not seen, scanned, shown to a model."""
CELLS_CAP = 1_000
_CELL_NAMES = {"unseen": ".", "scanned": "-", "shown": "#", "0": ".", "1": "-", "2": "#"}
_FENCED = re.compile(r"^```[^\n]*\n.*?(?:^```|\Z)", re.DOTALL | re.MULTILINE)
"""Anchored to line starts: otherwise a text of backquotes takes quadratic time."""


def remark(event: Event) -> tuple[str, str, str]:
    """Return heading, text and mood (plain, warn or bad) of an event that takes one line."""
    match event:
        case events.Planned():
            return "plan", plan(event), "plain"
        case events.BudgetWarned():
            text = f"{event.what}: {event.used:,g} of {event.limit:,g} ({share(event.share)})"
            return "budget", text, "warn"
        case events.Refused():
            return "refused", f"{event.what}: {event.why}", "bad"
        case events.UnknownEvent():
            return "unknown event", f"{event.kind}: of a newer version, or malformed", "warn"
    return "ended", "an event without its beginning", "warn"


def ending(final: FinalGiven) -> str:
    """Return how an answer was given, and the reason if the model did not give it by itself."""
    reason = f": {final.reason}" if final.reason else ""
    return f"by {final.how}" + ("" if final.ended == "answered" else f", {final.ended}{reason}")


def money(usd: float) -> str:
    """Return dollars, with as many decimals as are significant."""
    return f"${usd:,.2f}" if usd >= 1 or usd == 0 else f"${usd:.4f}"


def duration(ms: float) -> str:
    """Return a duration in a readable unit."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 99_950:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def tokens(usage: Usage) -> str:
    """Return tokens read and written."""
    cached = f" ({usage.cached:,} cached)" if usage.cached else ""
    return f"{usage.input:,} in{cached}, {usage.output:,} out"


def cost(totals: Totals) -> str:
    """Return dollars, and how many calls of unknown price they leave out."""
    if not totals.unpriced:
        return money(totals.usd)
    unknown = f"{counted(totals.unpriced, 'calls')} of unknown price"
    return f"{money(totals.usd)} + {unknown}" if totals.usd else unknown


def share(value: Any) -> str:
    """Return a share from 0 to 1 in percent; "?" for a value that is not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "?"
    if 0 < value < 0.001:
        return "<0.1 %"
    return f"{value * 100:.1f} %" if 0 < value < 0.1 else f"{value * 100:.0f} %"


def pairs(data: Mapping[str, Any]) -> str:
    """Return plain data in one line, without values that are None."""
    known = {name: value for name, value in data.items() if value is not None}
    return " · ".join(f"{name} {_said(value)}" for name, value in known.items())


def plan(event: Planned) -> str:
    """Return the way, why it was taken, and how many tokens each strategy was expected to take."""
    prices = {
        name: price["tokens_in"] + price["tokens_out"]
        for name, price in event.prices.items()
        if isinstance(price, dict)
        and all(_whole(price.get(part)) for part in ("tokens_in", "tokens_out"))
    }
    listed = ", ".join(f"{name} {tokens:,}" for name, tokens in prices.items())
    return f"{event.way}: {event.why}" + (f" (tokens, about: {listed})" if listed else "")


def prose(text: str) -> str:
    """Return a model's text without its code blocks, which are shown where they ran."""
    return _FENCED.sub("", text).strip()


def at_once(nodes: Iterable[Node]) -> int:
    """Return how many calls ran at the same time, at most."""
    moments = [moment for node in nodes for moment in ((node.start_ms, 1), (node.end_ms, -1))]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


def cells(coverage: Mapping[str, Any], width: int | None = None) -> str:
    """Return a coverage map as at most `width` characters of CELLS; each shows its best cell."""
    given = coverage.get("map", "")
    cells_given = given if isinstance(given, (str, list)) else ""
    known = "".join(_cell(cell) for cell in cells_given[:CELLS_CAP])
    wide = min(width or CELLS_CAP, len(known))
    edges = [number * len(known) // wide for number in range(wide + 1)] if wide else []
    return "".join(max(known[a:b], key=CELLS.index) for a, b in pairwise(edges))


def seen(coverage: Mapping[str, Any]) -> str:
    """Return how much of the context was seen, in words."""
    shown, scanned = (share(coverage.get(name)) for name in ("shown_share", "scanned_share"))
    length = coverage.get("length")
    whole = f"{length:,} characters" if isinstance(length, int) else "the context"
    return f"{shown} shown to a model, {scanned} scanned by code, of {whole}"


def found(evidence: Mapping[str, Any]) -> bool:
    """Return whether a quote occurs in the context."""
    return evidence.get("found") is True


def place(evidence: Mapping[str, Any]) -> str:
    """Return `path:line` of a quote from a file of several, else its offsets and line, if known."""
    path, start, end, line = (evidence.get(name) for name in ("path", "start", "end", "line"))
    if isinstance(path, str) and path:
        return f"at {path}:{line}" if _whole(line) else f"at {path}"
    where = [f"at {start:,}-{end:,}"] if _whole(start) and _whole(end) else []
    return ", ".join(where + ([f"line {line:,}"] if _whole(line) else []))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    return (
        value if isinstance(value, str) and value in {*CELLS} else _CELL_NAMES.get(str(value), ".")
    )


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return f"({pairs(value)})"
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:,}" if is_number else str(value)
