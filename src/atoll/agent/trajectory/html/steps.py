"""The events of a run as nested <details>, which are closed at first; page uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.agent.trajectory import events, research, words
from atoll.agent.trajectory.html import bars
from atoll.agent.trajectory.html.texts import one
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from atoll.agent.trajectory.events import Event
    from atoll.agent.trajectory.html.texts import Texts
    from atoll.agent.trajectory.tree import Node

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
        loose = [one for one in nodes if isinstance(one.event, events.SubcallStarted)]
        steps = [one for one in nodes if not isinstance(one.event, events.SubcallStarted)]
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
            case event:
                yield _remark(event)
        yield _more(node.event)

    def _model(self, node: Node) -> Iterator[str]:
        answer = node.end or node.event
        if not isinstance(answer, events.ModelAnswered):
            yield _line("Model", "no answer yet", "warn")
            return
        name = node.event.model if isinstance(node.event, events.ModelAsked) else ""
        told = [name, words.duration(answer.duration_ms), words.cost(node.totals)]
        told += [words.tokens(answer.usage)]
        yield self._open("Model", told, node, lead=words.prose(answer.text))
        yield self._pre(answer.text, PROSE_CAP, "prose")
        yield "</details>"

    def _turn(self, turn: events.CodeRan, node: Node) -> Iterator[str]:
        told = [turn.outcome, words.duration(turn.duration_ms), turn.isolation]
        if node.children:
            told += [counted(len(node.children), "sub-calls"), words.cost(node.totals)]
        told += ["the same code as before"] if turn.repeated else []
        mood = "good" if turn.outcome == "ok" else "bad"
        lead = next((row for row in turn.code.splitlines() if row.strip()[:1] not in {"", "#"}), "")
        yield self._open(f"Turn {turn.turn}", told, node, lead=lead, mood=mood, code=True)
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
        start, end = min(one.start_ms for one in nodes), max(one.end_ms for one in nodes)
        usd = sum(node.totals.usd for node in nodes)
        told = f"{words.duration(end - start)}, {words.money(usd)}"
        many = f", {words.at_once(nodes)} at once" if len(nodes) > 1 else ""
        yield f"<h4>{counted(len(nodes), 'sub-calls')}{many}: {told}</h4>"
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
            f"{bars.time(node, start, end)}</summary>"
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
        told: Sequence[str],
        node: Node,
        *,
        lead: str = "",
        mood: str = "plain",
        code: bool = False,
    ) -> str:
        """Return the opening tags of a step that can be unfolded."""
        facts = one(" · ".join(part for part in told if part), 200)
        tag = "code" if code else "span"
        shown = f'<{tag} class="lead">{one(lead, 100)}</{tag}>' if lead else ""
        bar = bars.time(node, self._run.start_ms, self._run.end_ms)
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


def _remark(event: Event) -> str:
    """Return the line for an event that needs only one."""
    match event:
        case events.Planned():
            return _line("Plan", f"{event.way}: {event.why}", "plain")
        case events.Explored():
            return _line("Explored", research.summary(event), "plain")
        case events.BudgetWarned():
            told = f"{event.what}: {event.used:,g} of {event.limit:,g} ({words.share(event.share)})"
            return _line("Budget", told, "warn")
        case events.Refused():
            return _line("Refused", f"{event.what}: {event.why}", "bad")
        case events.UnknownEvent():
            told = f"{event.kind}: of a newer version, or not as it should be"
            return _line("Unknown event", told, "warn")
    return _line("Ended", "what was never begun here", "warn")


def _line(title: str, text: str, mood: str) -> str:
    return f'<p class="line"><b class="chip {mood}">{title}</b> {one(text, 600)}</p>'


def _more(event: Event | None) -> str:
    """Return the fields that this version does not know."""
    if event is None or not event.extra:
        return ""
    return f'<p class="note">Also: {one(words.pairs(event.extra), 600)}</p>'
