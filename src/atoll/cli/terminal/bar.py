"""A progress bar for a download: one line redrawn on a terminal, a line every 5 % elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from atoll.agent.rlm.models.local.weights import in_words
from atoll.agent.trajectory import words
from atoll.cli.terminal.progress import ERASE, width_of

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_PERCENT = 5
CELLS = 30


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
        told = f"{percent:3} %  {in_words(size)} of {in_words(self._total)}{self._speed(size)}"
        room = width_of(self._stream) - len(told) - 5
        if not bar or room < CELLS // 3:
            return told
        cells = min(CELLS, room)
        full = cells * percent // 100
        return f"[{'#' * full}{'.' * (cells - full)}] {told}"

    def _speed(self, size: int) -> str:
        """Return rate and time left, once there is something to measure."""
        assert self._first is not None
        seconds, got = self._clock() - self._first[0], size - self._first[1]
        if seconds < 1 or got <= 0:
            return ""
        rate = got / seconds
        left = round((self._total - size) / rate)
        told = f"{left} s" if left < 100 else words.duration(left * 1000)
        return f"  {rate / 1e6:.1f} MB/s" + (f"  {told} left" if left else "")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
