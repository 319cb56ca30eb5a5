"""The progress of a run, and of a download; plain lines where output is not a terminal.

SECURITY: code and errors are a model's or a guest's. All of it passes through `terminal_text`.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TextIO

from atoll.agent.trajectory import events, terminal_text, words
from atoll.agent.trajectory.events import Usage
from atoll.agent.trajectory.terminal_text import Colours
from atoll.concurrency import forks
from atoll.text.amounts import counted, size_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.agent.trajectory.events import Event

ERASE = "\r\x1b[2K"
ECHO = 4
"""Columns that the live line leaves free: a terminal echoes `^C` behind it."""
PLAIN_WIDTH, NARROWEST, WIDEST = 100, 40, 120
STEP_PERCENT = 5
CELLS = 30


class Progress:
    """Prints the events of a run; on a terminal, also a live line about the current step."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live = stream, stream.isatty()
        self._paint, self._width = Colours.of(stream), width_of(stream)
        self._begun, self._lock = time.monotonic(), forks.new_lock()
        self._calls, self._usd, self._unpriced = 0, 0.0, False
        self._usage, self._turn = Usage(), 0
        self._doing, self._sub_calls, self._drawn = "", 0, False
        self._typed, self._typing_since = 0, 0.0

    def on_event(self, event: Event) -> None:
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
        """Redraw the live line with the time so far; `doing` names the current step."""
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
                good = event.outcome == "ok"
                failed = "" if good else f"{event.outcome}: "
                code = next(filter(str.strip, event.code.splitlines()), "")
                stroke = self._paint.good if good else self._paint.bad
                self._line(
                    f"turn {event.turn}",
                    failed + code,
                    stroke,
                    f"{counted(self._calls, 'calls')} · {self._cost()} · {self._took()}",
                )
            case events.BudgetWarned():
                used = f"{event.what}: {event.used:,g} of {event.limit:,g} are used"
                self._line("budget", used, self._paint.warn)
            case events.Refused():
                self._line("refused", f"{event.what}: {event.why}", self._paint.bad)

    def _line(self, head: str, text: str, stroke: object, tail: str = "") -> None:
        """Print a line that stays, in the place of the live line."""
        assert callable(stroke)
        self._erase()
        room = self._width - len(head) - 2 - (len(tail) + 2 if tail else 0)
        shown = terminal_text.clip(terminal_text.line(text), max(room, 1))
        gap = " " * max(room - terminal_text.columns(shown), 0) if tail else ""
        end = f"{gap}  {self._paint.faint(tail)}" if tail else ""
        self._stream.write(f"{stroke(head)}  {shown}{end}\n")
        self._stream.flush()

    def _draw(self) -> None:
        """Draw the live line, on a terminal only."""
        if not self._live or not self._doing:
            return
        tokens = words.tokens(self._usage)
        line = f"… {self._doing}{self._now()} · {self._took()} · {tokens} · {self._cost()}"
        shown = terminal_text.clip(terminal_text.line(line), self._width - ECHO)
        self._stream.write(ERASE + self._paint.faint(shown))
        self._stream.flush()
        self._drawn = True

    def _now(self) -> str:
        """Return the number of running sub-calls and of tokens written, with their rate."""
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


class Bar:
    """Shows bytes, percent, rate and the time that is left."""

    def __init__(
        self, stream: TextIO, total: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._total, self._clock = stream, total, clock
        self._live, self._told, self._size = stream.isatty(), -1, 0
        self._first: tuple[float, int] | None = None

    def show(self, size: int) -> None:
        """Show that `size` bytes are there; the bar never goes back."""
        size = self._size = max(size, self._size)
        if self._first is None:
            self._first = self._clock(), size
        percent = 100 * size // self._total
        if self._live:
            self._write(ERASE + self._line(size, percent, bar=True))
        elif percent // STEP_PERCENT > self._told // STEP_PERCENT or self._told < 0:
            self._write(self._line(size, percent, bar=False) + "\n")
        self._told = percent

    def end(self) -> None:
        """Leave the last state on a line of its own."""
        if self._live and self._told >= 0:
            self._write("\n")

    def _line(self, size: int, percent: int, *, bar: bool) -> str:
        state = f"{percent:3} %  {size_text(size)} of {size_text(self._total)}{self._speed(size)}"
        room = width_of(self._stream) - len(state) - 5
        if not bar or room < CELLS // 3:
            return state
        cells = min(CELLS, room)
        full = cells * percent // 100
        return f"[{'#' * full}{'.' * (cells - full)}] {state}"

    def _speed(self, size: int) -> str:
        """Return rate and time left, once there is something to measure."""
        assert self._first is not None
        seconds, got = self._clock() - self._first[0], size - self._first[1]
        if seconds < 1 or got <= 0:
            return ""
        rate = got / seconds
        left = round((self._total - size) / rate)
        duration = f"{left} s" if left < 100 else words.duration(left * 1000)
        return f"  {rate / 1e6:.1f} MB/s" + (f"  {duration} left" if left else "")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
