"""Progress of a run on stderr: one line per turn, and on a terminal a live line; ask uses it.

SECURITY: code and errors are a model's or a guest's. All of it passes through `terminal_text`.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TextIO

from atoll.agent.trajectory import events, terminal_text, words
from atoll.agent.trajectory.fields import Usage
from atoll.cli.terminal.colours import Colours
from atoll.concurrency import forks
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from atoll.agent.trajectory.events import Event

ERASE = "\r\x1b[2K"
ECHO = 4
"""Columns that the live line leaves free: a terminal echoes `^C` behind it."""
PLAIN_WIDTH, NARROWEST, WIDEST = 100, 40, 120


class Progress:
    """Hears the events of a run and prints them; on a terminal, also what is running now."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live = stream, stream.isatty()
        self._paint, self._width = Colours.of(stream), width_of(stream)
        self._begun, self._lock = time.monotonic(), forks.new_lock()
        self._calls, self._usd, self._unpriced = 0, 0.0, False
        self._usage, self._turn = Usage(), 0
        self._doing, self._sub_calls, self._drawn = "", 0, False
        self._typed, self._typing_since = 0, 0.0

    def hear(self, event: Event) -> None:
        """Take note of an event, of the run or of a run inside it."""
        with self._lock:
            self._count(event)
            if event.depth == 0:
                self._tell(event)
            self._draw()

    def type(self, _piece: str) -> None:
        """Count one piece of a streamed reply: a token of the local model."""
        with self._lock:
            if not self._typed:
                self._typing_since = time.monotonic()
            self._typed += 1

    def tick(self, doing: str | None = None) -> None:
        """Redraw the live line, as time has passed; `doing` says what is running."""
        with self._lock:
            self._doing = self._doing if doing is None else doing
            self._draw()

    def end(self) -> None:
        """Clear the live line."""
        with self._lock:
            self._doing = ""
            self._erase()

    def _count(self, event: Event) -> None:
        match event:
            case events.ModelAsked():
                self._typed = 0
            case events.ModelAnswered():
                self._calls += 1
                self._usage += event.usage
                self._usd += event.usd or 0.0
                self._unpriced = self._unpriced or event.usd is None
            case events.SubcallStarted():
                self._sub_calls += 1
            case events.SubcallEnded():
                self._sub_calls -= 1

    def _tell(self, event: Event) -> None:
        match event:
            case events.RunStarted():
                self._line("context", words.pairs(event.context), self._paint.faint)
            case events.Planned():
                self._line("plan", f"{event.way}: {event.why}", self._paint.faint)
            case events.ModelAsked():
                self._turn += 1
                prompt = f"prompt of about {event.input_tokens:,} tokens"
                self._doing = f"turn {self._turn}: waiting for the model ({prompt})"
            case events.ModelAnswered():
                self._doing = f"turn {self._turn}: running code"
            case events.CodeRan():
                self._tell_turn(event)
            case events.BudgetWarned():
                told = f"{event.what}: {event.used:,g} of {event.limit:,g} are used"
                self._line("budget", told, self._paint.warn)
            case events.Refused():
                self._line("refused", f"{event.what}: {event.why}", self._paint.bad)

    def _tell_turn(self, event: events.CodeRan) -> None:
        good = event.outcome == "ok"
        failed = "" if good else f"{event.outcome}: "
        code = next(filter(str.strip, event.code.splitlines()), "")
        stroke = self._paint.good if good else self._paint.bad
        self._line(f"turn {event.turn}", failed + code, stroke, self._so_far())

    def _line(self, head: str, text: str, stroke: object, tail: str = "") -> None:
        """Print a line that stays, in the place of the live line."""
        assert callable(stroke)
        self._erase()
        room = self._width - len(head) - 2 - (len(tail) + 2 if tail else 0)
        told = terminal_text.clip(terminal_text.line(text), max(room, 1))
        gap = " " * max(room - terminal_text.columns(told), 0) if tail else ""
        end = f"{gap}  {self._paint.faint(tail)}" if tail else ""
        self._stream.write(f"{stroke(head)}  {told}{end}\n")
        self._stream.flush()

    def _draw(self) -> None:
        """Draw the live line, on a terminal only."""
        if not self._live or not self._doing:
            return
        tokens = words.tokens(self._usage)
        told = f"… {self._doing}{self._now()} · {self._took()} · {tokens} · {self._cost()}"
        shown = terminal_text.clip(terminal_text.line(told), self._width - ECHO)
        self._stream.write(ERASE + self._paint.faint(shown))
        self._stream.flush()
        self._drawn = True

    def _now(self) -> str:
        """Return what else is known of what is running."""
        many = f", {counted(self._sub_calls, 'sub-calls')} running" if self._sub_calls else ""
        if not self._typed:
            return many
        rate = self._typed / max(time.monotonic() - self._typing_since, 0.5)
        return f"{many}, {counted(self._typed, 'tokens')} written ({rate:.1f}/s)"

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write(ERASE)
            self._stream.flush()
            self._drawn = False

    def _so_far(self) -> str:
        return f"{counted(self._calls, 'calls')} · {self._cost()} · {self._took()}"

    def _cost(self) -> str:
        return "price unknown" if self._unpriced else words.money(self._usd)

    def _took(self) -> str:
        return words.duration((time.monotonic() - self._begun) * 1000)


def width_of(stream: TextIO) -> int:
    """Return the number of columns to use of a stream."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return PLAIN_WIDTH
    return min(max(columns, NARROWEST), WIDEST) if columns else PLAIN_WIDTH
