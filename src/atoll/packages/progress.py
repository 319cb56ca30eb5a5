"""Shows what a build does: one line on a terminal after a second, cleared at the end."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

from atoll.text.amounts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUIET_SECONDS = 1.0
REDRAW_SECONDS = 0.2
WIDTH = 24
_LOGGER = logging.getLogger("atoll")


class Progress:
    """A line on stderr while its block runs; without a terminal, log lines (INFO)."""

    def __init__(self, title: str) -> None:
        self._title, self._doing, self._seconds = title, "", 0.0
        self._part: float | None = None
        self._over = threading.Event()
        self._drawer: threading.Thread | None = None

    def say(self, doing: str, seconds: float = 0.0) -> None:
        """Show the present step, with a bar if about how many seconds it takes is known."""
        self._doing = printable(doing)
        self._seconds, self._part = seconds, None
        _LOGGER.info("%s: %s", self._title, self._doing)

    def show(self, doing: str, part: float) -> None:
        """Show how far the present step is, from 0 to 1, with a bar; log nothing."""
        self._doing, self._part = doing, min(max(part, 0.0), 1.0)

    @contextlib.contextmanager
    def step(self, doing: str, seconds: float) -> Iterator[None]:
        """Show one step while the block runs."""
        with self:
            self.say(doing, seconds)
            yield

    @contextlib.contextmanager
    def watchdog(self, seconds: float, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop` if the block takes longer than `seconds`."""
        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def __enter__(self) -> Self:
        self._over.clear()
        if sys.stderr is not None and sys.stderr.isatty():
            self._drawer = threading.Thread(target=self._draw, daemon=True)
            self._drawer.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        if self._drawer is not None:
            self._drawer.join()

    def _draw(self) -> None:
        started = time.monotonic()
        if self._over.wait(QUIET_SECONDS):
            return
        while not self._over.wait(REDRAW_SECONDS):
            spent = time.monotonic() - started
            bar = self._bar(spent)
            sys.stderr.write(f"\r\x1b[K{self._title}{bar}: {self._doing}, {spent:.0f} s")
            sys.stderr.flush()
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

    def _bar(self, spent: float) -> str:
        if self._part is not None:
            return _filled(int(WIDTH * self._part))
        return _estimated(spent, self._seconds) if self._seconds else ""


def _estimated(spent: float, seconds: float) -> str:
    """Return a bar that fills by the estimate, and ever more slowly after it."""
    late = spent / (spent + seconds / 4) if spent > seconds else 0.0
    return _filled(int(WIDTH * max(late, min(spent / seconds, 0.8))))


def _filled(full: int) -> str:
    return f" [{'#' * full}{'.' * (WIDTH - full)}]"
