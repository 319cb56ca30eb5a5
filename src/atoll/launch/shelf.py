"""Guests of one kind that wait to be taken, refilled off the request's path, by demand."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING

from atoll.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.launch.line import Line

DEMAND_SECONDS = 1.0
TAKEN_PER_PARKED = 8
RETRIES = 4
PAUSE_SECONDS = 0.05
_closing: set[asyncio.Task[None]] = set()


class Shelf:
    """A few parked guests: at least `least`, more (up to `most`) while many are taken."""

    def __init__(self, hatch: Callable[[], Awaitable[Line]], least: int, most: int) -> None:
        self._hatch, self._least, self._most = hatch, least, most
        self._parked: deque[Line] = deque()
        self._taken: deque[float] = deque(maxlen=most * TAKEN_PER_PARKED)
        self._refills: set[asyncio.Task[None]] = set()
        self._open = True

    @property
    def parked(self) -> int:
        """How many wait."""
        return len(self._parked)

    async def take(self) -> Line:
        """A guest nobody has spoken to: a parked one that lives, or a new one."""
        self._taken.append(time.monotonic())
        line = self._next_alive()
        self.refill()
        return line if line is not None else await self._new()

    def refill(self) -> None:
        """Start what is missing, in the background."""
        while self._open and self.parked + len(self._refills) < self._target():
            task = asyncio.ensure_future(self._park())
            self._refills.add(task)
            task.add_done_callback(self._refills.discard)
        while self.parked > self._target():
            _close_later(self._parked.pop())

    async def filled(self) -> None:
        """Wait until nothing is on its way any more."""
        while self._refills:
            await asyncio.wait(self._refills)

    async def close(self) -> None:
        """End all that wait."""
        self._open = False
        await self.filled()
        while self._parked:
            await self._parked.popleft().close()

    def _target(self) -> int:
        since = time.monotonic() - DEMAND_SECONDS
        while self._taken and self._taken[0] < since:
            self._taken.popleft()
        return min(self._most, self._least + len(self._taken) // TAKEN_PER_PARKED)

    def _next_alive(self) -> Line | None:
        while self._parked:
            line = self._parked.popleft()
            if not line.channel.ended and not line.lease.ended.done():
                return line
            _close_later(line)
        return None

    async def _park(self) -> None:
        with contextlib.suppress(SandboxError):  # whoever takes next will meet it and be told
            line = await self._new()
            if self._open:
                self._parked.append(line)
            else:
                await line.close()

    async def _new(self) -> Line:
        """A new guest. Nothing of a caller's has run in one that fails, so another may be tried."""
        for attempt in range(RETRIES):
            try:
                return await self._hatch()
            except SandboxError:
                if attempt == RETRIES - 1:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)  # until it is known what was killed
        raise AssertionError("unreachable")


def _close_later(line: Line) -> None:
    task = asyncio.ensure_future(line.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
