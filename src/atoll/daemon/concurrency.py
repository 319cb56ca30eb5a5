"""The limit of concurrent executions, and the queue of those that wait for their turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Self

from atoll.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Iterator


class CancelledInQueueError(Exception):
    """An execution that was cancelled before its turn came: nothing of it ran."""


class ConcurrencyLimit:
    """A semaphore with a bounded first-in, first-out queue; BusyError if the queue is full."""

    def __init__(self, most_running: int, most_waiting: int) -> None:
        self._most_running, self._most_waiting = most_running, most_waiting
        self._queue: deque[asyncio.Future[bool]] = deque()
        self.running = 0

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether the next one has to wait for its turn."""
        return self.running >= self._most_running or bool(self._queue)

    def slot(self, holder: Waiter | None = None) -> Slot:
        """Return a place among the running, taken in `async with`; BusyError if too many wait."""
        return Slot(self, holder)

    async def enter(self, holder: Waiter) -> None:
        """Run from now on; wait for it if as many run as may."""
        if self.full:
            await self._wait(holder)
        else:
            self.running += 1

    async def _wait(self, holder: Waiter) -> None:
        if len(self._queue) >= self._most_waiting:
            raise BusyError(
                f"{self.running} executions run and {self.waiting} wait: try again later"
            )
        turn = holder.turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            if not await turn:
                raise CancelledInQueueError
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.leave()  # its turn came as its caller went
            raise
        finally:
            holder.turn = None
            with contextlib.suppress(ValueError):
                self._queue.remove(turn)

    def enter_again(self) -> None:
        """Run on without waiting."""
        self.running += 1

    def leave(self) -> None:
        """Make room for the next."""
        self.running -= 1
        while self._queue and self.running < self._most_running:
            turn = self._queue.popleft()
            if not turn.done():
                self.running += 1
                turn.set_result(True)


class Waiter:
    """A place in the queue that can be cancelled."""

    def __init__(self) -> None:
        self.turn: asyncio.Future[bool] | None = None

    def cancel(self) -> None:
        """Leave the queue; do nothing if it is not in the queue."""
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(False)


class Slot:
    """The place of one running execution. It is not counted while it waits for its client.

    Otherwise executions that wait for sub-executions could take every place, and none go on.
    """

    def __init__(self, limit: ConcurrencyLimit, holder: Waiter | None = None) -> None:
        self._concurrency, self._holder, self._calls, self._open = limit, holder, 0, False

    async def __aenter__(self) -> Self:
        await self._concurrency.enter(self._holder or Waiter())
        self._open = True
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.release()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Around a call to the client."""
        self._calls += 1
        if self._calls == 1 and self._open:
            self._concurrency.leave()
        try:
            yield
        finally:
            self._calls -= 1
            if self._calls == 0 and self._open:
                self._concurrency.enter_again()

    def release(self) -> None:
        """The execution is over, whatever calls of it are still open."""
        if self._open and self._calls == 0:
            self._concurrency.leave()
        self._open = False
