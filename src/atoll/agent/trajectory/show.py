"""Shows a trajectory in a terminal, as a tree of events in lines of its width."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.agent.trajectory import events, terminal_text, words
from atoll.agent.trajectory.events import RunEnded
from atoll.agent.trajectory.terminal_text import Colours
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from atoll.agent.trajectory.events import Event, Explored, FinalGiven
    from atoll.agent.trajectory.reader import Trajectory
    from atoll.agent.trajectory.tree import Node


STEP = 2
NARROWEST = 40
"""Least columns; a prefix takes at most three quarters of them."""
SAY_LINES, HEAD = 5, 40
"""Lines of a remark, unless everything is shown, and columns of its heading."""

Stroke = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """The width of a terminal, its colours, and whether texts are shown in full."""

    width: int
    brush: Colours
    full: bool

    def say(self, level: int, head: str, text: str, stroke: Stroke) -> Iterator[str]:
        """Yield a coloured heading with a text wrapped beside it."""
        first = terminal_text.clip(terminal_text.line(head), min(HEAD, self.width // 3))
        indent = self._indent(level)
        lead = terminal_text.columns(first) + 2
        room = self.width - len(indent) - lead
        lines = self._first(terminal_text.wrap(terminal_text.line(text), room), SAY_LINES)
        yield f"{indent}{stroke(first)}  {lines[0]}".rstrip()
        for line in lines[1:]:
            yield f"{indent}{' ' * lead}{line}"

    def quote(
        self, level: int, bar: str, text: str, most: int, stroke: Stroke, *, wrap: bool = False
    ) -> Iterator[str]:
        """Yield the first lines of an untrusted text behind a bar, and how many more there are."""
        lines = terminal_text.lines(text)
        shown = lines if self.full else lines[:most]
        start = f"{self._indent(level)}{self.brush.faint(bar)} "
        room = self.width - len(self._indent(level)) - len(bar) - 1
        fold = terminal_text.wrap if wrap or self.full else _clipped
        for line in shown:
            for part in fold(line, room):
                yield f"{start}{stroke(part)}".rstrip()
        if len(lines) > len(shown):
            rest = f"… {counted(len(lines) - len(shown), 'more lines')}"
            yield f"{start}{self.brush.faint(rest)}"

    def row(self, level: int, head: str, left: str, right: str) -> str:
        """Return one line with two untrusted texts, both cut to fit."""
        indent, lead = (
            self._indent(level),
            terminal_text.clip(terminal_text.line(head), self.width * 2 // 5),
        )
        room = self.width - len(indent) - terminal_text.columns(lead) - 5
        answer = terminal_text.clip(terminal_text.line(right), room // 2)
        asked = terminal_text.clip(terminal_text.line(left), room - terminal_text.columns(answer))
        return f"{indent}{self.brush.faint(lead)}  {asked} → {answer}"

    def _first(self, lines: list[str], most: int) -> list[str]:
        return lines if self.full or len(lines) <= most else [*lines[:most], "…"]

    def _indent(self, level: int) -> str:
        return " " * min(level * STEP, self.width // 4)


def _clipped(text: str, width: int) -> list[str]:
    return [terminal_text.clip(text, width)]


MARKS = {"analyzed": "[+]", "pending": "[?]", "stale": "[~]"}
ROWS_CAP, DEEPEST = 200, 10
_ID = re.compile(r"[A-Z]{1,2}[0-9]{1,6}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One node of the tree; its parent and references are indices of rows."""

    id: str
    call: str
    found: str
    status: str
    parent: int | None
    """Index of its parent's row."""
    level: int
    references: tuple[int, ...] = ()
    """Indices of the rows that it refers to by text."""
    similar: tuple[int, ...] = ()
    """Indices of the rows with a similar meaning."""

    @property
    def mark(self) -> str:
        """Its status as a sign."""
        return MARKS[self.status]


def graph_rows(event: Explored) -> list[Row]:
    """Return the nodes as a tree in rows, each parent above its children."""
    nodes = _known(event.nodes)
    order = _in_tree_order(nodes)
    places = {name: at for at, (name, _) in enumerate(order)}
    return [_row(name, level, nodes, places) for name, level in order]


def summary(event: Explored) -> str:
    """Return strategy, calls and token efficiency in one line."""
    calls = ", ".join(f"{name} {number}" for name, number in event.calls.items())
    facts = [event.strategy, calls, f"token efficiency {event.token_efficiency:.3g}"]
    facts += [f"{event.left_out:,} earlier calls left out"] if event.left_out else []
    return " · ".join(part for part in facts if part)


def _known(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    result: dict[str, Mapping[str, Any]] = {}
    for node in list(nodes)[:ROWS_CAP]:
        name = node.get("id")
        if isinstance(name, str) and _ID.fullmatch(name):
            result.setdefault(name, node)
    return result


def _in_tree_order(nodes: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Return ids with their levels; a parent that comes later or is missing is ignored."""
    children: dict[str | None, list[str]] = {}
    seen: set[str] = set()
    for name, node in nodes.items():
        parent = node.get("parent")
        is_before = isinstance(parent, str) and parent in seen
        children.setdefault(parent if is_before else None, []).append(name)
        seen.add(name)
    order: list[tuple[str, int]] = []
    waiting = [(name, 0) for name in reversed(children.get(None, []))]
    while waiting:
        name, level = waiting.pop()
        order.append((name, level))
        waiting += [(child, min(level + 1, DEEPEST)) for child in reversed(children.get(name, []))]
    return order


def _row(
    name: str, level: int, nodes: Mapping[str, Mapping[str, Any]], places: Mapping[str, int]
) -> Row:
    node = nodes[name]
    status, parent = node.get("status"), node.get("parent")
    return Row(
        id=name,
        call=str(node.get("call", "")),
        found=str(node.get("found", "")),
        status=status if isinstance(status, str) and status in MARKS else "pending",
        parent=places.get(parent) if level and isinstance(parent, str) else None,
        level=level,
        references=_places(node.get("references"), places),
        similar=_places(node.get("similar"), places),
    )


def _places(names: Any, places: Mapping[str, int]) -> tuple[int, ...]:
    if not isinstance(names, (list, tuple)):
        return ()
    return tuple(places[name] for name in names if isinstance(name, str) and name in places)


CODE_LINES, OUTPUT_LINES, PROSE_LINES, SUBCALLS, RESEARCH_ROWS = 8, 6, 3, 6, 30
"""Lines shown of each text, unless everything is shown."""
_OPENERS = (events.Planned, events.ModelAsked, events.Explored, events.FinalGiven)
"""Events with a blank line before them."""


def show(
    trajectory: Trajectory, *, width: int = 80, full: bool = False, brush: Colours | None = None
) -> Iterator[str]:
    """Yield the lines that show a trajectory."""
    canvas = Canvas(width=max(width, NARROWEST), brush=brush or Colours(enabled=False), full=full)
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
    loose = [node for node in nodes if isinstance(node.event, events.SubcallStarted)]
    for node in nodes:
        if level == 0 and isinstance(node.event, _OPENERS):
            yield ""
        if not isinstance(node.event, events.SubcallStarted):
            yield from _node(canvas, node, level)
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
        case _:
            head, text, mood = words.remark(event)
            stroke = {"plain": brush.strong, "warn": brush.warn, "bad": brush.bad}[mood]
            yield from canvas.say(level, head, text, stroke)
    yield from _more(canvas, level + 1, event)


def _model(canvas: Canvas, node: Node, level: int) -> Iterator[str]:
    answer = node.end or node.event
    if not isinstance(answer, events.ModelAnswered):
        yield from canvas.say(level, "model", "no answer yet", canvas.brush.warn)
        return
    name = f"{node.event.model} · " if isinstance(node.event, events.ModelAsked) else ""
    summary = f"{name}{words.duration(answer.duration_ms)} · {words.cost(node.totals)} · "
    yield from canvas.say(level, "model", summary + words.tokens(answer.usage), canvas.brush.faint)
    text = answer.text if canvas.full else words.prose(answer.text)
    yield from canvas.quote(level + 1, "┆", text, PROSE_LINES, str)


def _turn(
    canvas: Canvas, event: events.CodeRan, subcalls: Sequence[Node], level: int
) -> Iterator[str]:
    facts = [event.outcome, words.duration(event.duration_ms), event.isolation]
    facts += ["the same code as before"] if event.repeated else []
    stroke = canvas.brush.good if event.outcome == "ok" else canvas.brush.bad
    line = " · ".join(part for part in facts if part)
    yield from canvas.say(level, f"turn {event.turn}", line, stroke)
    yield from canvas.quote(level + 1, ">", event.code, CODE_LINES, str)
    yield from _subcalls(canvas, subcalls, level + 1)
    yield from canvas.quote(level + 1, "│", event.observation, OUTPUT_LINES, canvas.brush.faint)
    if event.spilled:
        yield from canvas.say(level + 1, "the whole is in", event.spilled, canvas.brush.faint)


def _explored(canvas: Canvas, event: events.Explored, level: int) -> Iterator[str]:
    """Yield the strategy, and the tree of calls with their references."""
    yield from canvas.say(level, "explored", summary(event), canvas.brush.strong)
    rows = graph_rows(event)
    for row in rows if canvas.full else rows[:RESEARCH_ROWS]:
        refers = [rows[at].id for at in row.references] + [f"~{rows[at].id}" for at in row.similar]
        text = f"{row.mark} {row.id}" + (f" (refs {', '.join(refers)})" if refers else "")
        yield canvas.row(level + 1 + row.level, text, row.call, row.found)
    if len(rows) > RESEARCH_ROWS and not canvas.full:
        rest = f"… {len(rows) - RESEARCH_ROWS:,} more"
        yield from canvas.say(level + 1, rest, "--full shows them", canvas.brush.faint)


def _subcalls(canvas: Canvas, nodes: Sequence[Node], level: int) -> Iterator[str]:
    """Yield sub-calls; if there are many, the first, the failed ones and those with a run."""
    if len(nodes) > 1:
        took = max(node.end_ms for node in nodes) - min(node.start_ms for node in nodes)
        usd = sum(node.totals.usd for node in nodes)
        text = f"{words.at_once(nodes)} at once · {words.duration(took)} · {words.money(usd)}"
        head = counted(len(nodes), "sub-calls")
        yield from canvas.say(level, head, text, canvas.brush.strong)
    chosen = list(nodes) if canvas.full else _chosen(nodes)
    for step in chosen:
        yield from _subcall(canvas, step, level + (len(nodes) > 1))
    if len(chosen) < len(nodes):
        rest = f"… {len(nodes) - len(chosen):,} more"
        yield from canvas.say(level + 1, rest, "--full shows them", canvas.brush.faint)


def _chosen(nodes: Sequence[Node]) -> list[Node]:
    if len(nodes) <= SUBCALLS:
        return list(nodes)
    telling = [node for at, node in enumerate(nodes) if at < SUBCALLS // 2 or _telling(node)]
    return telling[: 2 * SUBCALLS]


def _telling(node: Node) -> bool:
    failed = isinstance(node.end, events.SubcallEnded) and node.end.error is not None
    return failed or bool(node.children)


def _subcall(canvas: Canvas, node: Node, level: int) -> Iterator[str]:
    begun, ended = node.event, node.end
    assert isinstance(begun, events.SubcallStarted)
    facts = [begun.kind, words.duration(node.end_ms - node.start_ms), words.cost(node.totals)]
    facts[2:] = [f"as {begun.shared_with}"] if begun.shared_with else facts[2:]
    answer, marks = "no answer yet", ""
    if isinstance(ended, events.SubcallEnded):
        answer = ended.answer if ended.error is None else f"FAILED: {ended.error}"
        marks = " (downgraded)" if ended.downgraded else ""
    if canvas.full or node.children:
        yield from canvas.say(level, begun.kind + marks, " · ".join(facts[1:]), canvas.brush.strong)
        yield from canvas.quote(level + 1, "?", begun.prompt, PROSE_LINES, str)
        if begun.context:
            yield from canvas.say(
                level + 1, "context", words.pairs(begun.context), canvas.brush.faint
            )
        yield from _nodes(canvas, node.children, level + 1)
        yield from canvas.quote(level + 1, "=", answer, PROSE_LINES, str)
    else:
        yield canvas.row(level, " ".join(facts) + marks, begun.prompt, answer)
    for event in (begun, ended):
        if event is not None:
            yield from _more(canvas, level + 1, event)


def _more(canvas: Canvas, level: int, event: Event) -> Iterator[str]:
    """Yield the fields that this version does not know."""
    if event.extra:
        yield from canvas.say(level, "also", words.pairs(event.extra), canvas.brush.faint)


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
    for line in shown:
        yield from _evidence(canvas, line, level)
    if len(shown) < len(evidence):
        rest = f"… {len(evidence) - len(shown):,} more quotes"
        yield from canvas.say(level, rest, "", canvas.brush.faint)
    if coverage:
        yield from _coverage(canvas, coverage, level)


def show_end(canvas: Canvas, node: Node) -> Iterator[str]:
    """Yield the cost of a run, and how it ended."""
    totals, brush = node.totals, canvas.brush
    facts = [
        words.duration(node.end_ms - node.start_ms),
        counted(totals.calls, "model calls"),
        words.tokens(totals.usage),
        words.cost(totals),
    ]
    if not isinstance(node.end, RunEnded):
        yield from canvas.say(0, "under way, or cut off", " · ".join(facts), brush.warn)
        return
    stroke = {"answered": brush.good, "forced": brush.warn}.get(node.end.outcome, brush.bad)
    yield from canvas.say(0, node.end.outcome, " · ".join(facts), stroke)
    if node.end.error:
        yield from canvas.quote(1, "│", node.end.error, ANSWER_LINES, brush.bad, wrap=True)


def _evidence(canvas: Canvas, mapping: Mapping[str, Any], level: int) -> Iterator[str]:
    facts = words.found(mapping)
    head, stroke = ("found", canvas.brush.good) if facts else ("not found", canvas.brush.bad)
    yield from canvas.say(
        level, head, f"“{mapping.get('quote', '')}” {words.place(mapping)}", stroke
    )


def _coverage(canvas: Canvas, coverage: Mapping[str, Any], level: int) -> Iterator[str]:
    yield from canvas.say(level, "seen", words.seen(coverage), canvas.brush.faint)
    drawn = words.cells(coverage, min(CELLS, canvas.width - 24)).translate(_DRAWN)
    if drawn:
        yield from canvas.say(level, "map", drawn, canvas.brush.faint)
