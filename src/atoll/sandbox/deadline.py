"""A deadline that is set for every request and seldom reached, and the grace after it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from atoll.types import Usage

LONGEST_GRACE_SECONDS = 2.0
"""What a guest has at most to react to an interrupt, on a machine with more work than cores."""
_REACTED = 0.6
"""A guest that had this share of its grace as CPU time could have reacted."""


class Deadline:
    """Calls back when time is up. Setting it again costs no new timer: most are never reached."""

    def __init__(self, on_late: Callable[[], None]) -> None:
        self._loop, self._on_late = asyncio.get_running_loop(), on_late
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Call back in so many seconds, instead of what was set before."""
        self._at = at = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > at:
            self.cancel()
            self._timer = self._loop.call_at(at, self._ring)

    def clear(self) -> None:
        """Call back no more; the timer stays for the next time."""
        self._at = None

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        """Call back, or start a timer for the rest if the deadline was moved meanwhile."""
        self._timer = None
        if self._at is None:
            return
        left = self._at - self._loop.time()
        if left > 0:
            self.set(left)
        else:
            self._at = None
            self._on_late()


async def ends_within_grace(request: asyncio.Future[Any], seconds: float, usage: Usage) -> bool:
    """Wait for a request whose guest was interrupted; return False if it does not end.

    The guest has `seconds` to react, and more where it gets no CPU time to do so: while it waits
    for a core. One that sleeps through the interrupt, or computes on, has no more.
    """
    loop, before = asyncio.get_running_loop(), usage.cpu_seconds()
    end = loop.time() + max(seconds, LONGEST_GRACE_SECONDS)
    while True:
        done, _ = await asyncio.wait({request}, timeout=min(seconds, end - loop.time()))
        if done:
            return True
        used = usage.cpu_seconds()
        if used is None or before is None or used - before >= _REACTED * seconds:
            return False
        if loop.time() >= end or not usage.is_runnable():
            return False


async def finish(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end, also if the caller is cancelled meanwhile; only then raise that."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as exc:
            cancelled = exc
    task.result()
    if cancelled is not None:
        raise cancelled
