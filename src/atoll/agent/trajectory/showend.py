"""Shows how a run ended in a terminal: the answer, its evidence, the coverage; for `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.agent.trajectory import words
from atoll.agent.trajectory.events import RunEnded
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from atoll.agent.trajectory.canvas import Canvas
    from atoll.agent.trajectory.events import FinalGiven
    from atoll.agent.trajectory.tree import Node

ANSWER_LINES, EVIDENCE, CELLS = 20, 10, 60
_DRAWN = str.maketrans({".": "·", "-": "▒", "#": "█"})


def show_final(canvas: Canvas, event: FinalGiven, level: int) -> Iterator[str]:
    """Yield the answer and its evidence."""
    how = words.ending(event)
    stroke = canvas.brush.good if event.ended == "answered" else canvas.brush.warn
    yield from canvas.say(level, "answer", how, stroke)
    yield from canvas.quote(level + 1, "┃", event.text, ANSWER_LINES, str, wrap=True)
    yield from show_support(canvas, event.evidence, event.coverage, level + 1)


def show_support(
    canvas: Canvas, evidence: Sequence[Mapping[str, Any]], coverage: Mapping[str, Any], level: int
) -> Iterator[str]:
    """Yield an answer's checked quotes, and how much of the context was seen."""
    shown = evidence if canvas.full else evidence[:EVIDENCE]
    for one in shown:
        yield from _evidence(canvas, one, level)
    if len(shown) < len(evidence):
        rest = f"… {len(evidence) - len(shown):,} more quotes"
        yield from canvas.say(level, rest, "", canvas.brush.faint)
    if coverage:
        yield from _coverage(canvas, coverage, level)


def show_end(canvas: Canvas, node: Node) -> Iterator[str]:
    """Yield the cost of a run, and how it ended."""
    totals, brush = node.totals, canvas.brush
    told = [
        words.duration(node.end_ms - node.start_ms),
        counted(totals.calls, "model calls"),
        words.tokens(totals.usage),
        words.cost(totals),
    ]
    if not isinstance(node.end, RunEnded):
        yield from canvas.say(0, "under way, or cut off", " · ".join(told), brush.warn)
        return
    stroke = {"answered": brush.good, "forced": brush.warn}.get(node.end.outcome, brush.bad)
    yield from canvas.say(0, node.end.outcome, " · ".join(told), stroke)
    if node.end.error:
        yield from canvas.quote(1, "│", node.end.error, ANSWER_LINES, brush.bad, wrap=True)


def _evidence(canvas: Canvas, one: Mapping[str, Any], level: int) -> Iterator[str]:
    found = words.found(one)
    head, stroke = ("found", canvas.brush.good) if found else ("not found", canvas.brush.bad)
    yield from canvas.say(level, head, f"“{one.get('quote', '')}” {words.place(one)}", stroke)


def _coverage(canvas: Canvas, coverage: Mapping[str, Any], level: int) -> Iterator[str]:
    yield from canvas.say(level, "seen", words.seen(coverage), canvas.brush.faint)
    drawn = words.cells(coverage, min(CELLS, canvas.width - 24)).translate(_DRAWN)
    if drawn:
        yield from canvas.say(level, "map", drawn, canvas.brush.faint)
