"""Print an answer: its text on stdout, evidence and cost on stderr; ask uses it."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from atoll.agent.rlm.model_calls import usage_fields
from atoll.agent.rlm.types import Ended
from atoll.agent.trajectory import terminal_text, words
from atoll.agent.trajectory.canvas import Canvas
from atoll.agent.trajectory.showend import show_support
from atoll.cli.commands.run import plain
from atoll.cli.terminal.colours import Colours
from atoll.cli.terminal.progress import width_of
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from atoll.agent.rlm.types import Answer


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
    evidence = [dataclasses.asdict(one) for one in answer.evidence]
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


def as_json(answer: Answer) -> dict[str, Any]:
    """Return the answer as values that JSON can hold."""
    return {
        "outcome": answer.ended.value,
        "reason": answer.reason,
        "answer": answer.text,
        "value": plain(answer.value),
        "evidence": [dataclasses.asdict(one) for one in answer.evidence],
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
    told = [
        counted(answer.turns, "turns"),
        counted(answer.calls, "model calls"),
        words.tokens(usage_fields(answer.usage)),
        cost,
        words.duration(answer.seconds * 1000),
    ]
    return " · ".join(told)
