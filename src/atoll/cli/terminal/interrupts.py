"""Ctrl-C while a cell runs: cancels it, once or for good; run and repl use it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atoll.sandbox.base import BaseSandbox

INTERRUPTED = 130
AGAIN_SECONDS = 0.05


class Canceller:
    """Cancels the running cell of a sandbox, from the moment it is told to."""

    def __init__(self, box: BaseSandbox) -> None:
        self._box = box
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Cancel the cell, now or as soon as it runs."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._cancel())

    def stop(self) -> None:
        """The cell has ended."""
        if self._task is not None:
            self._task.cancel()

    async def _cancel(self) -> None:
        while True:  # a cancel before the cell has begun does nothing
            await self._box.cancel()
            await asyncio.sleep(AGAIN_SECONDS)


@contextlib.contextmanager
def on_ctrl_c(callback: Callable[[], None], *, end_on_second: bool) -> Iterator[None]:
    """Call back in the event loop on Ctrl-C; a second one may end the process at once.

    Ending so leaves nothing behind: the jails end with the process that holds them.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as under nohup: not ours to take
        yield
        return
    loop = asyncio.get_running_loop()
    presses = 0

    def handle(_number: int, _frame: object) -> None:
        nonlocal presses
        presses += 1
        if presses > 1 and end_on_second:
            os._exit(INTERRUPTED)
        loop.call_soon_threadsafe(callback)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
