"""What is known of a run that was interrupted: turns, last output, cost; ask prints it on Ctrl-C.

SECURITY: code and output are a model's or a guest's. The Canvas makes all of it harmless.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from atoll.agent.trajectory import terminal_text, words
from atoll.agent.trajectory.canvas import Canvas
from atoll.agent.trajectory.events import CodeRan, ModelAnswered, ModelAsked, SubcallEnded
from atoll.agent.trajectory.fields import Usage
from atoll.cli.terminal.colours import Colours
from atoll.cli.terminal.progress import width_of
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.agent.trajectory.events import Event

SHOWN_LINES = 8
NO_TRACE = "none; with --trace FILE every step is kept"


class Known:
    """Listens to the events of a run and keeps what would be lost with it."""

    def __init__(self) -> None:
        self.turns = self.calls = 0
        self.usd: float | None = 0.0
        self.usage = Usage()
        self.last: CodeRan | None = None
        self.told = ""
        self._asking = False
        self._begun = time.monotonic()

    def hear(self, event: Event) -> None:
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

    def as_json(self, trace: str | None) -> dict[str, Any]:
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
        told = [counted(self.calls, "model calls"), words.tokens(self.usage), usd]
        cut = "; the reply that was cut off is not counted" if self._asking else ""
        return " · ".join(told) + cut

    def _count(self, event: ModelAnswered) -> None:
        self.calls += 1
        self.usage += event.usage
        known = self.usd is not None and event.usd is not None
        self.usd = (self.usd or 0.0) + (event.usd or 0.0) if known else None
