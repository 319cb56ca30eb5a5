"""How a run goes on, told on stderr while it does: a line a turn; ask uses it.

SECURITY: code and errors are a model's or a guest's. All of it passes through `harmless`.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, TextIO

from atoll.cli.colours import Colours
from atoll.rlm.trajectory import harmless, words
from atoll.rlm.trajectory.events import (
    BudgetWarned,
    CodeRan,
    ModelAnswered,
    ModelAsked,
    Planned,
    Refused,
    RunStarted,
    SubcallEnded,
    SubcallStarted,
)

if TYPE_CHECKING:
    from atoll.rlm.trajectory.events import Event

ERASE = "\r\x1b[2K"
PLAIN_WIDTH, NARROWEST, WIDEST = 100, 40, 120


class Progress:
    """Hears a run's events and tells of them; on a terminal, also of what is under way."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live = stream, stream.isatty()
        self._paint, self._width = Colours.of(stream), width_of(stream)
        self._begun, self._lock = time.monotonic(), threading.Lock()
        self._calls, self._usd, self._unpriced = 0, 0.0, False
        self._doing, self._under_way, self._drawn = "", 0, False

    def hear(self, event: Event) -> None:
        """Something happened, here or in a run within."""
        with self._lock:
            self._count(event)
            if event.depth == 0:
                self._tell(event)
            self._draw()

    def tick(self) -> None:
        """Time has passed."""
        with self._lock:
            self._draw()

    def end(self) -> None:
        """Leave nothing that would be overwritten."""
        with self._lock:
            self._doing = ""
            self._erase()

    def _count(self, event: Event) -> None:
        match event:
            case ModelAnswered():
                self._calls += 1
                self._usd += event.usd or 0.0
                self._unpriced = self._unpriced or event.usd is None
            case SubcallStarted():
                self._under_way += 1
            case SubcallEnded():
                self._under_way -= 1

    def _tell(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._line("context", words.pairs(event.context), self._paint.faint)
            case Planned():
                self._line("plan", f"{event.way}: {event.why}", self._paint.faint)
            case ModelAsked():
                self._doing = "the model writes"
            case ModelAnswered():
                self._doing = "code runs"
            case CodeRan():
                self._turn(event)
            case BudgetWarned():
                told = f"{event.what}: {event.used:,g} of {event.limit:,g} are used"
                self._line("budget", told, self._paint.warn)
            case Refused():
                self._line("refused", f"{event.what}: {event.why}", self._paint.bad)

    def _turn(self, event: CodeRan) -> None:
        good = event.outcome == "ok"
        failed = "" if good else f"{event.outcome}: "
        code = next(filter(str.strip, event.code.splitlines()), "")
        stroke = self._paint.good if good else self._paint.bad
        self._line(f"turn {event.turn}", failed + code, stroke, self._so_far())

    def _line(self, head: str, text: str, stroke: object, tail: str = "") -> None:
        """A line that stays: what was said last gives way to it."""
        assert callable(stroke)
        self._erase()
        room = self._width - len(head) - 2 - (len(tail) + 2 if tail else 0)
        told = harmless.clip(harmless.line(text), max(room, 1))
        gap = " " * max(room - harmless.columns(told), 0) if tail else ""
        end = f"{gap}  {self._paint.faint(tail)}" if tail else ""
        self._stream.write(f"{stroke(head)}  {told}{end}\n")
        self._stream.flush()

    def _draw(self) -> None:
        """What is under way, on a terminal: the next word overwrites it."""
        if not self._live or not self._doing:
            return
        many = f", {words.count(self._under_way, 'sub-call')} under way" if self._under_way else ""
        told = harmless.clip(f"… {self._doing}{many}  {self._so_far()}", self._width - 1)
        self._stream.write(ERASE + self._paint.faint(told))
        self._stream.flush()
        self._drawn = True

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write(ERASE)
            self._stream.flush()
            self._drawn = False

    def _so_far(self) -> str:
        usd = "price unknown" if self._unpriced else words.money(self._usd)
        took = words.duration((time.monotonic() - self._begun) * 1000)
        return f"{words.count(self._calls, 'call')} · {usd} · {took}"


def width_of(stream: TextIO) -> int:
    """Columns to use of a stream."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return PLAIN_WIDTH
    return min(max(columns, NARROWEST), WIDEST) if columns else PLAIN_WIDTH
