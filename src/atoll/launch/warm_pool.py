"""Keeps guests of one kind parked; refills in the background, by demand."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING

from atoll.concurrency.shares import acting_for
from atoll.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.launch.guest_handle import GuestHandle

DEMAND_SECONDS = 1.0
TAKEN_PER_PARKED = 8
_closing: set[asyncio.Task[None]] = set()


class WarmPool:
    """Parked guests: at least `least`, up to `most` while many are taken."""

    def __init__(
        self, fork_guest: Callable[[], Awaitable[GuestHandle]], least: int, most: int
    ) -> None:
        self._fork_guest, self._least, self._most = fork_guest, least, most
        self._parked: deque[GuestHandle] = deque()
        self._taken: deque[float] = deque(maxlen=most * TAKEN_PER_PARKED)
        self.on_take: Callable[[bool], None] = lambda _parked: None
        """Is called for each guest that is taken: whether it was parked."""
        self._refills: set[asyncio.Task[None]] = set()
        self._open = True

    @property
    def parked(self) -> int:
        """The number of parked guests."""
        return len(self._parked)

    async def take(self) -> GuestHandle:
        """Return a fresh guest: a living parked guest, or a new one."""
        self._taken.append(time.monotonic())
        handle = self._next_alive()
        self.on_take(handle is not None)
        self.refill()
        return handle if handle is not None else await self._fork_guest()

    def refill(self) -> None:
        """Start missing guests in the background; close surplus ones."""
        while self._open and self.parked + len(self._refills) < self._target():
            with acting_for(""):  # a parked guest is for whichever client comes next
                task = asyncio.ensure_future(self._park())
            self._refills.add(task)
            task.add_done_callback(self._refills.discard)
        while self.parked > self._target():
            _close_later(self._parked.pop())

    async def filled(self) -> None:
        """Wait until no refill is running."""
        while self._refills:
            await asyncio.wait(self._refills)

    async def close(self) -> None:
        """End all parked guests."""
        self._open = False
        await self.filled()
        while self._parked:
            await self._parked.popleft().close()

    def _target(self) -> int:
        since = time.monotonic() - DEMAND_SECONDS
        while self._taken and self._taken[0] < since:
            self._taken.popleft()
        return min(self._most, self._least + len(self._taken) // TAKEN_PER_PARKED)

    def _next_alive(self) -> GuestHandle | None:
        while self._parked:
            handle = self._parked.popleft()
            if not handle.channel.ended and not handle.lease.ended.done():
                return handle
            _close_later(handle)
        return None

    async def _park(self) -> None:
        with contextlib.suppress(SandboxError):  # the next take() raises it
            handle = await self._fork_guest()
            if self._open:
                self._parked.append(handle)
            else:
                await handle.close()


def _close_later(handle: GuestHandle) -> None:
    task = asyncio.ensure_future(handle.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
