"""The events of a run as nested <details>, which are closed at first; page uses it."""

from __future__ import annotations

import html
import keyword
import re
from itertools import groupby
from typing import TYPE_CHECKING, Any

from atoll.agent.trajectory import events, show, terminal_text, words
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from atoll.agent.trajectory.events import Event, Explored
    from atoll.agent.trajectory.show import Row
    from atoll.agent.trajectory.tree import Node


PAGE_CAP = 8_000_000
"""Characters of markup for texts on a page; beyond them, each text keeps its first SHORT."""
SHORT = 200
_PYTHON = re.compile(
    r"(?P<c>\#[^\n]*)"
    r"|(?P<s>\b[rRbBfFuU]{0,2}(?:'''.*?(?:'''|\Z)|\"\"\".*?(?:\"\"\"|\Z)"
    r"|'(?:\\.|[^'\\\n])*'?|\"(?:\\.|[^\"\\\n])*\"?)"
    r"|'''.*?(?:'''|\Z)|\"\"\".*?(?:\"\"\"|\Z)|'(?:\\.|[^'\\\n])*'?|\"(?:\\.|[^\"\\\n])*\"?)"
    rf"|(?P<k>\b(?:{'|'.join(keyword.kwlist)})\b)"
    r"|(?P<n>\b\d[\w.]*)",
    re.DOTALL,
)


def one(text: str, cap: int = 300) -> str:
    """Return a text as one line of markup."""
    return html.escape(terminal_text.clip(terminal_text.line(text[: 4 * cap]), cap))


class Texts:
    """The long texts of one page, with the number of characters that still fit."""

    def __init__(self, room: int = PAGE_CAP) -> None:
        self._room = room

    def many(self, text: str, cap: int) -> str:
        """Return a text as markup for a <pre>, with a note of how much is missing."""
        kept, rest = self._cut(text, cap)
        return self._counted(html.escape(kept)) + rest

    def code(self, text: str, cap: int) -> str:
        """Return Python as markup for a <pre>, with comments, strings, keywords, numbers marked."""
        kept, rest = self._cut(text, cap)
        return self._counted(_marked(kept)) + rest

    def _cut(self, text: str, cap: int) -> tuple[str, str]:
        allowed = min(cap, max(self._room, SHORT))
        kept = "\n".join(terminal_text.lines(text[:allowed]))
        missing = len(text) - allowed
        if missing <= 0:
            return kept, ""
        return kept, f'<span class="cut">… {missing:,} more characters</span>'

    def _counted(self, markup: str) -> str:
        self._room -= len(markup)
        return markup


def _marked(code: str) -> str:
    parts, done = [], 0
    for match in _PYTHON.finditer(code):
        parts.append(html.escape(code[done : match.start()]))
        parts.append(f'<span class="{match.lastgroup}">{html.escape(match[0])}</span>')
        done = match.end()
    return "".join([*parts, html.escape(code[done:])])


_CLASSES = {"-": "scanned", "#": "shown"}


def time(node: Node, start_ms: float, end_ms: float) -> str:
    """Return a bar that shows when a node ran, between two times."""
    whole = max(end_ms - start_ms, 0.001)
    left = min(max((node.start_ms - start_ms) / whole, 0), 1) * 100
    wide = min(max((node.end_ms - node.start_ms) / whole * 100, 0.8), 100 - left or 0.8)
    return (
        '<svg class="time" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="on" x="{min(left, 99.2):.2f}" width="{wide:.2f}" height="6"/></svg>'
    )


def coverage(fields: Mapping[str, Any]) -> str:
    """Return the coverage map of a context, and its text form."""
    cells, text = words.cells(fields), one(words.seen(fields))
    if not cells:
        return f'<p class="seen">{text}</p>\n'
    at, drawn = 0, []
    for kind, group in groupby(cells):
        wide = len(list(group))
        if kind in _CLASSES:
            drawn.append(f'<rect class="{_CLASSES[kind]}" x="{at}" width="{wide}" height="6"/>')
        at += wide
    return (
        f'<svg class="map" role="img" aria-label="{text}" viewBox="0 0 {at} 6" '
        f'preserveAspectRatio="none">{"".join(drawn)}</svg>\n<p class="seen">{text}</p>\n'
        '<p class="legend"><i class="shown"></i> shown to a model <i class="scanned"></i> scanned '
        'by code <i class="unseen"></i> not seen</p>\n'
    )


WIDE, ROW, STEP = 960, 34, 22
"""Units of the drawing: its width, the height of a row, the indentation of a level."""
MARGIN, ARC, BOX = 64, 56, 46
"""Room at the left for arcs, the widest arc, and the width of a node's box."""
LETTER = 6.6
"""Width of a letter at the size of the labels."""


def graph(event: Explored) -> Iterator[str]:
    """Yield a heading, the graph, and a legend; nothing if there are no calls."""
    rows = show.graph_rows(event)
    if not rows:
        return
    yield f'<section>\n<h2>Research</h2>\n<p class="note">{one(show.summary(event))}</p>\n'
    height = ROW * len(rows) + 8
    text = f"{len(rows)} calls and what they refer to"
    yield f'<div class="wide"><svg class="graph" role="img" aria-label="{text}" '
    yield f'viewBox="0 0 {WIDE} {height}">\n'
    for at, row in enumerate(rows):
        yield from _lines(at, row, rows)
    for at, row in enumerate(rows):
        yield _node(at, row)
    yield "</svg></div>\n"
    yield (
        '<p class="legend"><i class="analyzed"></i> analyzed <i class="pending"></i> pending '
        '<i class="stale"></i> stale; arcs: refers to, dashed: means much the same</p>\n'
        "</section>\n"
    )


def _lines(at: int, row: Row, rows: list[Row]) -> Iterator[str]:
    x, y = _x(row), _y(at)
    if row.parent is not None:
        left = _x(rows[row.parent]) + 10
        yield f'<path class="line" d="M{left} {_y(row.parent) + 11}V{y}H{x}"/>\n'
    for kind, places in (("refers", row.references), ("similar", row.similar)):
        for place in places:
            if place != at:
                yield _arc(kind, at, place, rows)


def _arc(kind: str, at: int, to: int, rows: list[Row]) -> str:
    """Return a curve at the left; it is wider if its ends are farther apart."""
    x, y, left, top = _x(rows[at]), _y(at), _x(rows[to]), _y(to)
    bend = max(4, MARGIN - 12 - min(ARC, 8 * abs(at - to)))
    return f'<path class="{kind}" d="M{x} {y}C{bend} {y} {bend} {top} {left} {top}"/>\n'


def _node(at: int, row: Row) -> str:
    x, y = _x(row), _y(at)
    room = int((WIDE - x - BOX - 16) / LETTER)
    call, result = one(row.call, min(room, 110)), one(row.found, room)
    text = x + BOX + 8
    return (
        f"<g><title>{one(f'{row.id} ({row.status}): {row.call}', 300)}</title>"
        f'<rect class="{row.status}" x="{x}" y="{y - 11}" width="{BOX}" height="22" rx="5"/>'
        f'<text class="id" x="{x + BOX / 2:g}" y="{y + 4}">{one(row.id, 8)}</text>'
        f'<text class="call" x="{text}" y="{y - 2}">{call}</text>'
        f'<text class="found" x="{text}" y="{y + 12}">{result}</text></g>\n'
    )


def _x(row: Row) -> int:
    return MARGIN + STEP * row.level


def _y(at: int) -> int:
    return ROW * at + ROW // 2 + 4


STEPS_CAP = 20_000
"""Most steps and sub-calls on a page, so that browsers can show it."""
CODE_CAP, OUTPUT_CAP, PROSE_CAP, QUERY_CAP = 6_000, 4_000, 4_000, 1_500


class Steps:
    """The steps of one run; their bars are relative to its time."""

    def __init__(self, texts: Texts, run: Node, most: int = STEPS_CAP) -> None:
        self._texts, self._run, self._left = texts, run, most

    def all(self) -> Iterator[str]:
        """Yield the steps of the run itself."""
        yield from self._list(self._run.children)

    def _list(self, nodes: Sequence[Node]) -> Iterator[str]:
        loose = [node for node in nodes if isinstance(node.event, events.SubcallStarted)]
        steps = [node for node in nodes if not isinstance(node.event, events.SubcallStarted)]
        yield '<ol class="steps">\n'
        yield from self._items(steps, self._step)
        if loose:
            yield "<li>"
            yield from self._subcalls(loose)
            yield "</li>\n"
        yield "</ol>\n"

    def _items(
        self, nodes: Sequence[Node], shown: Callable[[Node], Iterator[str]]
    ) -> Iterator[str]:
        for at, node in enumerate(nodes):
            if not self._left:
                rest = f"… {len(nodes) - at:,} more: atoll trace show --full has them"
                yield f'<li class="note">{rest}</li>\n'
                return
            self._left -= 1
            yield "<li>"
            yield from shown(node)
            yield "</li>\n"

    def _step(self, node: Node) -> Iterator[str]:
        match node.event:
            case events.CodeRan() as turn:
                yield from self._turn(turn, node)
            case events.ModelAsked() | events.ModelAnswered():
                yield from self._model(node)
            case events.FinalGiven() as final:
                mood = "good" if final.ended == "answered" else "warn"
                yield _line("Answer", words.ending(final), mood)
                if final.parent is not None:  # the run's own answer is shown above
                    yield self._pre(final.text, OUTPUT_CAP, "answer")
            case events.Explored() as seen:
                yield _line("Explored", show.summary(seen), "plain")
            case event:
                head, text, mood = words.remark(event)
                yield _line(head.capitalize(), text, mood)
        yield _more(node.event)

    def _model(self, node: Node) -> Iterator[str]:
        answer = node.end or node.event
        if not isinstance(answer, events.ModelAnswered):
            yield _line("Model", "no answer yet", "warn")
            return
        name = node.event.model if isinstance(node.event, events.ModelAsked) else ""
        facts = [name, words.duration(answer.duration_ms), words.cost(node.totals)]
        facts += [words.tokens(answer.usage)]
        yield self._open("Model", facts, node, lead=words.prose(answer.text))
        yield self._pre(answer.text, PROSE_CAP, "prose")
        yield "</details>"

    def _turn(self, turn: events.CodeRan, node: Node) -> Iterator[str]:
        facts = [turn.outcome, words.duration(turn.duration_ms), turn.isolation]
        if node.children:
            facts += [counted(len(node.children), "sub-calls"), words.cost(node.totals)]
        facts += ["the same code as before"] if turn.repeated else []
        mood = "good" if turn.outcome == "ok" else "bad"
        lead = next((row for row in turn.code.splitlines() if row.strip()[:1] not in {"", "#"}), "")
        yield self._open(f"Turn {turn.turn}", facts, node, lead=lead, mood=mood, code=True)
        yield f"<h4>Code</h4><pre>{self._texts.code(turn.code, CODE_CAP)}</pre>"
        yield from self._subcalls(node.children)
        yield f"<h4>What the model was told</h4>{self._pre(turn.observation, OUTPUT_CAP)}"
        if turn.spilled:
            yield f'<p class="note">The whole is in <code>{one(turn.spilled)}</code></p>'
        yield "</details>"

    def _subcalls(self, nodes: Sequence[Node]) -> Iterator[str]:
        """Yield sub-calls with bars relative to the time that all of them took."""
        if not nodes:
            return
        start, end = min(node.start_ms for node in nodes), max(node.end_ms for node in nodes)
        usd = sum(node.totals.usd for node in nodes)
        text = f"{words.duration(end - start)}, {words.money(usd)}"
        many = f", {words.at_once(nodes)} at once" if len(nodes) > 1 else ""
        yield f"<h4>{counted(len(nodes), 'sub-calls')}{many}: {text}</h4>"
        yield '<ol class="calls">\n'
        yield from self._items(nodes, lambda node: self._subcall(node, start, end))
        yield "</ol>"

    def _subcall(self, node: Node, start: float, end: float) -> Iterator[str]:
        begun, ended = node.event, node.end
        assert isinstance(begun, events.SubcallStarted)
        took = words.duration(node.end_ms - node.start_ms)
        cost = f"as {begun.shared_with}" if begun.shared_with else words.cost(node.totals)
        mood, answer = _answer(ended)
        yield (
            f'<details><summary><span class="what"><b class="chip {mood}">{one(begun.kind, 30)}</b>'
            f" {one(begun.prompt, 90)}</span>"
            f'<span class="cost">{took} · {one(cost, 60)}</span>'
            f"{time(node, start, end)}</summary>"
        )
        yield f"<h5>Asked</h5>{self._pre(begun.prompt, QUERY_CAP)}"
        if begun.context:
            yield f'<p class="note">Context: {one(words.pairs(begun.context), 600)}</p>'
        if node.children:
            yield from self._list(node.children)
        downgraded = isinstance(ended, events.SubcallEnded) and ended.downgraded
        title = "Answered as an llm_query" if downgraded else "Answered"
        yield f"<h5>{title}</h5>{self._pre(answer, QUERY_CAP)}"
        yield f"{_more(begun)}{_more(ended)}</details>"

    def _open(
        self,
        title: str,
        lines: Sequence[str],
        node: Node,
        *,
        lead: str = "",
        mood: str = "plain",
        code: bool = False,
    ) -> str:
        """Return the opening tags of a step that can be unfolded."""
        facts = one(" · ".join(part for part in lines if part), 200)
        tag = "code" if code else "span"
        shown = f'<{tag} class="lead">{one(lead, 100)}</{tag}>' if lead else ""
        bar = time(node, self._run.start_ms, self._run.end_ms)
        return (
            f'<details><summary><h3 class="{mood}">{title}</h3><span class="cost">{facts}</span>'
            f"{shown}{bar}</summary>"
        )

    def _pre(self, text: str, cap: int, kind: str = "out") -> str:
        shown = self._texts.many(text, cap)
        return f'<pre class="{kind}">{shown}</pre>' if shown else '<p class="note">Nothing.</p>'


def _answer(ended: Event | None) -> tuple[str, str]:
    """Return the outcome and the answer of a sub-call."""
    if not isinstance(ended, events.SubcallEnded):
        return "warn", "no answer yet"
    return ("plain", ended.answer) if ended.error is None else ("bad", ended.error)


def _line(title: str, text: str, mood: str) -> str:
    return f'<p class="line"><b class="chip {mood}">{title}</b> {one(text, 600)}</p>'


def _more(event: Event | None) -> str:
    """Return the fields that this version does not know."""
    if event is None or not event.extra:
        return ""
    return f'<p class="note">Also: {one(words.pairs(event.extra), 600)}</p>'
