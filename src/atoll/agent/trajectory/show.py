"""Shows a trajectory in a terminal, as a tree of events in lines of its width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.agent.trajectory import events, research, words
from atoll.agent.trajectory.canvas import NARROWEST, Canvas, NoBrush
from atoll.agent.trajectory.showend import show_end, show_final
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atoll.agent.trajectory.canvas import Brush
    from atoll.agent.trajectory.events import Event
    from atoll.agent.trajectory.reader import Trajectory
    from atoll.agent.trajectory.tree import Node

CODE_LINES, OUTPUT_LINES, PROSE_LINES, SUBCALLS, RESEARCH_ROWS = 8, 6, 3, 6, 30
"""Lines shown of each text, unless everything is shown."""
_OPENERS = (events.Planned, events.ModelAsked, events.Explored, events.FinalGiven)
"""Events with a blank line before them."""


def show(
    trajectory: Trajectory, *, width: int = 80, full: bool = False, brush: Brush | None = None
) -> Iterator[str]:
    """Yield the lines that show a trajectory."""
    canvas = Canvas(width=max(width, NARROWEST), brush=brush or NoBrush(), full=full)
    for node in trajectory.tree():
        yield from _run(canvas, node)
    if not trajectory.events:
        yield "nothing has happened in it yet"
    if trajectory.torn:
        yield canvas.brush.warn("the last line of the file is not whole")
    if trajectory.skipped:
        yield canvas.brush.warn(f"{counted(trajectory.skipped, 'lines')} could not be read")
    if trajectory.cut:
        yield canvas.brush.warn("there is more in the file than is read")


def _run(canvas: Canvas, node: Node) -> Iterator[str]:
    event = node.event
    if isinstance(event, events.RunStarted):
        yield from canvas.say(0, "question", event.question, canvas.brush.strong)
        models = f"{event.model}, sub-calls {event.sub_model}" if event.sub_model else event.model
        about = f"{event.run} · {models} · atoll {event.atoll_version} · {event.at}"
        yield from canvas.say(1, "run", about, canvas.brush.faint)
        for name, data in (("context", event.context), ("budget", event.budget)):
            if data:
                yield from canvas.say(1, name, words.pairs(data), canvas.brush.faint)
        yield from _more(canvas, 1, event)
    else:
        yield from canvas.say(
            0, "run", f"{event.run} · its beginning is not here", canvas.brush.warn
        )
    yield from _nodes(canvas, node.children, 0)
    yield ""
    yield from show_end(canvas, node)


def _nodes(canvas: Canvas, nodes: Sequence[Node], level: int) -> Iterator[str]:
    """Yield the events of a call; sub-calls without a turn belong to code that still runs."""
    loose = [one for one in nodes if isinstance(one.event, events.SubcallStarted)]
    for one in nodes:
        if level == 0 and isinstance(one.event, _OPENERS):
            yield ""
        if not isinstance(one.event, events.SubcallStarted):
            yield from _node(canvas, one, level)
    yield from _subcalls(canvas, loose, level)


def _node(canvas: Canvas, node: Node, level: int) -> Iterator[str]:
    event, brush = node.event, canvas.brush
    match event:
        case events.ModelAsked() | events.ModelAnswered():
            yield from _model(canvas, node, level)
        case events.CodeRan():
            yield from _turn(canvas, event, node.children, level)
        case events.Explored():
            yield from _explored(canvas, event, level)
        case events.FinalGiven():
            yield from show_final(canvas, event, level)
        case events.Planned():
            yield from canvas.say(level, "plan", f"{event.way}: {event.why}", brush.strong)
        case events.BudgetWarned():
            told = f"{event.what}: {event.used:,g} of {event.limit:,g} ({words.share(event.share)})"
            yield from canvas.say(level, "budget", told, brush.warn)
        case events.Refused():
            yield from canvas.say(level, "refused", f"{event.what}: {event.why}", brush.bad)
        case events.RunEnded() | events.SubcallEnded():
            yield from canvas.say(level, "ended", "what was never begun here", brush.warn)
        case events.UnknownEvent():
            known = "an event of a newer version, or not as it should be"
            yield from canvas.say(level, event.kind or "unknown", known, brush.warn)
    yield from _more(canvas, level + 1, event)


def _model(canvas: Canvas, node: Node, level: int) -> Iterator[str]:
    answer = node.end or node.event
    if not isinstance(answer, events.ModelAnswered):
        yield from canvas.say(level, "model", "no answer yet", canvas.brush.warn)
        return
    name = f"{node.event.model} · " if isinstance(node.event, events.ModelAsked) else ""
    told = f"{name}{words.duration(answer.duration_ms)} · {words.cost(node.totals)} · "
    yield from canvas.say(level, "model", told + words.tokens(answer.usage), canvas.brush.faint)
    text = answer.text if canvas.full else words.prose(answer.text)
    yield from canvas.quote(level + 1, "┆", text, PROSE_LINES, str)


def _turn(
    canvas: Canvas, event: events.CodeRan, subcalls: Sequence[Node], level: int
) -> Iterator[str]:
    told = [event.outcome, words.duration(event.duration_ms), event.isolation]
    told += ["the same code as before"] if event.repeated else []
    stroke = canvas.brush.good if event.outcome == "ok" else canvas.brush.bad
    line = " · ".join(one for one in told if one)
    yield from canvas.say(level, f"turn {event.turn}", line, stroke)
    yield from canvas.quote(level + 1, ">", event.code, CODE_LINES, str)
    yield from _subcalls(canvas, subcalls, level + 1)
    yield from canvas.quote(level + 1, "│", event.observation, OUTPUT_LINES, canvas.brush.faint)
    if event.spilled:
        yield from canvas.say(level + 1, "the whole is in", event.spilled, canvas.brush.faint)


def _explored(canvas: Canvas, event: events.Explored, level: int) -> Iterator[str]:
    """Yield the strategy, and the tree of calls with their references."""
    yield from canvas.say(level, "explored", research.summary(event), canvas.brush.strong)
    rows = research.rows(event)
    for row in rows if canvas.full else rows[:RESEARCH_ROWS]:
        refers = [rows[at].id for at in row.references] + [f"~{rows[at].id}" for at in row.similar]
        told = f"{row.mark} {row.id}" + (f" (refs {', '.join(refers)})" if refers else "")
        yield canvas.row(level + 1 + row.level, told, row.call, row.found)
    if len(rows) > RESEARCH_ROWS and not canvas.full:
        rest = f"… {len(rows) - RESEARCH_ROWS:,} more"
        yield from canvas.say(level + 1, rest, "--full shows them", canvas.brush.faint)


def _subcalls(canvas: Canvas, nodes: Sequence[Node], level: int) -> Iterator[str]:
    """Yield sub-calls; if there are many, the first, the failed ones and those with a run."""
    if len(nodes) > 1:
        took = max(one.end_ms for one in nodes) - min(one.start_ms for one in nodes)
        usd = sum(one.totals.usd for one in nodes)
        told = f"{words.at_once(nodes)} at once · {words.duration(took)} · {words.money(usd)}"
        head = counted(len(nodes), "sub-calls")
        yield from canvas.say(level, head, told, canvas.brush.strong)
    chosen = list(nodes) if canvas.full else _chosen(nodes)
    for one in chosen:
        yield from _subcall(canvas, one, level + (len(nodes) > 1))
    if len(chosen) < len(nodes):
        rest = f"… {len(nodes) - len(chosen):,} more"
        yield from canvas.say(level + 1, rest, "--full shows them", canvas.brush.faint)


def _chosen(nodes: Sequence[Node]) -> list[Node]:
    if len(nodes) <= SUBCALLS:
        return list(nodes)
    telling = [one for at, one in enumerate(nodes) if at < SUBCALLS // 2 or _telling(one)]
    return telling[: 2 * SUBCALLS]


def _telling(node: Node) -> bool:
    failed = isinstance(node.end, events.SubcallEnded) and node.end.error is not None
    return failed or bool(node.children)


def _subcall(canvas: Canvas, node: Node, level: int) -> Iterator[str]:
    begun, ended = node.event, node.end
    assert isinstance(begun, events.SubcallStarted)
    told = [begun.kind, words.duration(node.end_ms - node.start_ms), words.cost(node.totals)]
    told[2:] = [f"as {begun.shared_with}"] if begun.shared_with else told[2:]
    answer, marks = "no answer yet", ""
    if isinstance(ended, events.SubcallEnded):
        answer = ended.answer if ended.error is None else f"FAILED: {ended.error}"
        marks = " (downgraded)" if ended.downgraded else ""
    if canvas.full or node.children:
        yield from canvas.say(level, begun.kind + marks, " · ".join(told[1:]), canvas.brush.strong)
        yield from canvas.quote(level + 1, "?", begun.prompt, PROSE_LINES, str)
        if begun.context:
            yield from canvas.say(
                level + 1, "context", words.pairs(begun.context), canvas.brush.faint
            )
        yield from _nodes(canvas, node.children, level + 1)
        yield from canvas.quote(level + 1, "=", answer, PROSE_LINES, str)
    else:
        yield canvas.row(level, " ".join(told) + marks, begun.prompt, answer)
    for one in (begun, ended):
        if one is not None:
            yield from _more(canvas, level + 1, one)


def _more(canvas: Canvas, level: int, event: Event) -> Iterator[str]:
    """Yield the fields that this version does not know."""
    if event.extra:
        yield from canvas.say(level, "also", words.pairs(event.extra), canvas.brush.faint)
