"""Print an answer, or the state of an interrupted run; `ask` uses it.

SECURITY: code and output are a model's or a guest's. The Canvas makes all of it harmless.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from atoll.agent.rlm.model_calls import usage_fields
from atoll.agent.rlm.types import Ended
from atoll.agent.trajectory import terminal_text, words
from atoll.agent.trajectory.events import CodeRan, ModelAnswered, ModelAsked, SubcallEnded, Usage
from atoll.agent.trajectory.show import Canvas, show_support
from atoll.agent.trajectory.terminal_text import Colours
from atoll.cli.commands.run import plain
from atoll.cli.terminal.progress import width_of
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.agent.rlm.types import Answer
    from atoll.agent.strategies.planner import Plan
    from atoll.agent.trajectory.events import Event

PLAN_COLUMNS = "{:2}{:9}{:>16}{:>12}{:>10}{:>12}"
SHOWN_LINES = 8
NO_TRACE = "none; with --trace FILE every step is kept"


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """Print what each strategy would take; the ones that would be used are marked, in order."""
    if as_json:
        prices = {
            name: {**price.to_dict(), "usd": price.usd} for name, price in plan.prices.items()
        }
        print(json.dumps({"order": plan.order, "why": plan.why, "prices": prices}))
        return
    print(f"{', then '.join(plan.order)}: {terminal_text.line(plan.why)}")
    print(PLAN_COLUMNS.format("", "strategy", "calls", "tokens", "seconds", "cost"))
    for name, price in plan.prices.items():
        mark = "*" if name == plan.order[0] else "+" if name in plan.order else ""
        most = price.most_calls
        calls = f"{price.calls:,}" + (f", at most {most:,}" if most > price.calls else "")
        cost = "not known" if price.usd is None else f"${price.usd:.4f}"
        row = (mark, name, calls, f"{price.tokens:,}", f"{price.seconds:,.0f}", cost)
        print(PLAN_COLUMNS.format(*row))
    print(
        "Seconds are those of a model on two cores. * comes first, + follows if it finds nothing."
    )


class InterruptedRun:
    """Listens to the events of a run and keeps what would be lost with it."""

    def __init__(self) -> None:
        self.turns = self.calls = 0
        self.usd: float | None = 0.0
        self.usage = Usage()
        self.last: CodeRan | None = None
        self.told = ""
        self._asking = False
        self._begun = time.monotonic()

    def on_event(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case ModelAsked():
                self._asking = True
            case ModelAnswered():
                self._asking = False
                self._count(event)
            case CodeRan() if event.depth == 0:
                self.turns, self.last = event.turn, event
            case SubcallEnded() if event.depth == 0 and not event.error:
                self.told = event.answer

    def print(self, trace: str | None) -> None:
        """Print it on stderr; `trace` is the file that has every step."""
        paint = Colours.of(sys.stderr)
        canvas = Canvas(width=width_of(sys.stderr), brush=paint, full=False)
        print("\n".join(self._lines(canvas, trace)), file=sys.stderr, flush=True)

    def as_json(self, trace: str | None) -> dict[str, object]:
        """Return it as JSON can hold it."""
        return {
            "outcome": "interrupted",
            "turns": self.turns,
            "calls": self.calls,
            "usage": asdict(self.usage),
            "usd": self.usd,
            "code": self.last.code if self.last else None,
            "observation": self.last.observation if self.last else None,
            "sub_answer": self.told or None,
            "seconds": round(time.monotonic() - self._begun, 3),
            "trace": trace,
        }

    def _lines(self, canvas: Canvas, trace: str | None) -> Iterator[str]:
        brush = canvas.brush
        took = words.duration((time.monotonic() - self._begun) * 1000)
        yield brush.warn(f"atoll: interrupted after {took}, before there was an answer.")
        done = f"{counted(self.turns, 'turns')} done" if self.turns else "no turn was finished"
        yield from canvas.say(0, "turns", done, brush.strong)
        if self.last is not None:
            yield from canvas.say(0, "last code", "", brush.strong)
            yield from canvas.quote(1, "│", self.last.code, SHOWN_LINES, str)
            yield from canvas.say(0, "last output", "", brush.strong)
            yield from canvas.quote(1, "│", self.last.observation, SHOWN_LINES, str)
        if self.told:
            yield from canvas.say(0, "last sub-answer", self.told, brush.strong)
        yield from canvas.say(0, "cost", self._cost(), brush.strong)
        where = f"{terminal_text.line(trace)} (atoll trace show FILE)" if trace else NO_TRACE
        yield f"{brush.strong('trace')}  {where}"  # not wrapped, so that the path can be copied

    def _cost(self) -> str:
        usd = "price unknown" if self.usd is None else words.money(self.usd)
        parts = [counted(self.calls, "model calls"), words.tokens(self.usage), usd]
        cut = "; the reply that was cut off is not counted" if self._asking else ""
        return " · ".join(parts) + cut

    def _count(self, event: ModelAnswered) -> None:
        self.calls += 1
        self.usage += event.usage
        known = self.usd is not None and event.usd is not None
        self.usd = (self.usd or 0.0) + (event.usd or 0.0) if known else None


def print_text(answer: Answer) -> None:
    """Print the text; on a terminal, control characters are escaped."""
    text = answer.text
    if answer.ended is Ended.UNANSWERED:
        return
    print("\n".join(terminal_text.lines(text)) if sys.stdout.isatty() else text)


def print_support(answer: Answer) -> None:
    """Print evidence, coverage, cost and the path of the trace on stderr."""
    paint = Colours.of(sys.stderr)
    canvas = Canvas(width=width_of(sys.stderr), brush=paint, full=False)
    evidence = [dataclasses.asdict(quote) for quote in answer.evidence]
    coverage = {} if answer.coverage is None else answer.coverage.to_dict()
    lines = [*show_support(canvas, evidence, coverage, 0)]
    stroke = paint.good if answer.ended is Ended.ANSWERED else paint.warn
    lines += canvas.say(0, answer.ended.value, _totals(answer), stroke)
    if answer.trajectory_path is not None:
        where = f"{answer.trajectory_path} (atoll trace show FILE, atoll trace html FILE)"
        lines += canvas.say(0, "trace", where, paint.faint)
    print("\n".join(lines), file=sys.stderr)


def print_json(answer: Answer) -> None:
    """Print the answer with all that belongs to it as one JSON object."""
    print(json.dumps(as_json(answer)))


def as_json(answer: Answer) -> dict[str, object]:
    """Return the answer as values that JSON can hold."""
    return {
        "outcome": answer.ended.value,
        "reason": answer.reason,
        "answer": answer.text,
        "value": plain(answer.value),
        "evidence": [dataclasses.asdict(quote) for quote in answer.evidence],
        "coverage": None if answer.coverage is None else answer.coverage.to_dict(),
        "way": answer.way,
        "why": answer.why,
        "usd": answer.cost,
        "usage": dataclasses.asdict(answer.usage),
        "calls": answer.calls,
        "turns": answer.turns,
        "seconds": round(answer.seconds, 3),
        "trace": None if answer.trajectory_path is None else str(answer.trajectory_path),
    }


def _totals(answer: Answer) -> str:
    cost = "price unknown: see ATOLL_PRICES" if answer.cost is None else words.money(answer.cost)
    parts = [
        counted(answer.turns, "turns"),
        counted(answer.calls, "model calls"),
        words.tokens(usage_fields(answer.usage)),
        cost,
        words.duration(answer.seconds * 1000),
    ]
    return " · ".join(parts)
