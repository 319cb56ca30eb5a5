"""A progress bar for the first build, which takes a minute; on a terminal only, then cleared."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH = 24
_LOGGER = logging.getLogger("atoll")


class Progress:
    """Steps in order, each with an estimate of its time."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._shown = sys.stderr is not None and sys.stderr.isatty()

    @contextlib.contextmanager
    def step(self, what: str, seconds: float) -> Iterator[None]:
        """Show a step while the block runs."""
        _LOGGER.info("%s: %s", self._title, what)
        over = threading.Event()
        drawer = threading.Thread(target=self._draw, args=(what, seconds, over), daemon=True)
        if self._shown:
            drawer.start()
        try:
            yield
        finally:
            over.set()
            if self._shown:
                drawer.join()
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()

    def _draw(self, what: str, seconds: float, over: threading.Event) -> None:
        started = time.monotonic()
        while not over.wait(0.1):
            spent = time.monotonic() - started
            full = int(WIDTH * spent / (spent + seconds / 4)) if spent > seconds else 0
            full = max(full, int(WIDTH * min(spent / seconds, 0.8)))
            bar = "#" * full + "." * (WIDTH - full)
            sys.stderr.write(f"\r\x1b[K{self._title} [{bar}] {what}, {spent:.0f} s")
            sys.stderr.flush()
