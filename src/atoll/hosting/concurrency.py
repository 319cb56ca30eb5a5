"""The limit of concurrent executions, and the queue of those that wait for their turn."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self

from atoll.concurrency.shares import OWNER, FairShare
from atoll.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Iterator


class CancelledInQueueError(Exception):
    """An execution that was cancelled before its turn came: nothing of it ran."""


class ConcurrencyLimit:
    """Places for executions, shared fairly by OWNER; BusyError if too many wait.

    An owner of which nothing runs waits for no other, as long as fewer than `most_running` owners
    are served so: at most twice `most_running` run. The queue is shared fairly too: past
    `most_waiting`, only an owner that has less than its share of the queue may still wait.
    """

    def __init__(self, most_running: int, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._share: FairShare[asyncio.Future[bool]] = FairShare(most_running, reserve=most_running)

    @property
    def running(self) -> int:
        """How many run."""
        return self._share.running

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return self._share.waiting

    @property
    def place(self) -> int:
        """The place that the current owner's next one would have among its own that wait; 0: none.

        How many others wait is none of its business.
        """
        owner = OWNER.get()
        ahead = self._share.waiting_of(owner)
        return 0 if not ahead and self._share.may_start(owner) else ahead + 1

    def slot(self, holder: Waiter | None = None) -> Slot:
        """Return a place among the running, taken in `async with`; BusyError if too many wait."""
        return Slot(self, holder)

    async def enter(self, owner: str, holder: Waiter | None) -> None:
        """Run from now on; wait for it if as many run as may."""
        if not self._share.try_enter(owner):
            await self._wait(owner, holder or Waiter())

    async def _wait(self, owner: str, holder: Waiter) -> None:
        if self._crowded(owner):
            raise BusyError(
                f"{self.running} executions run and {self.waiting} wait: try again later"
            )
        turn = holder.turn = asyncio.get_running_loop().create_future()
        self._share.push(owner, turn)
        try:
            if not await turn:
                raise CancelledInQueueError
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.leave(owner)  # its turn came as its caller went
            raise
        finally:
            holder.turn = None
            self._share.remove(owner, turn)

    def _crowded(self, owner: str) -> bool:
        """Return whether an owner may not wait: the queue is full, and the owner has its share."""
        own, owners = self._share.waiting_of(owner), self._share.owners_waiting
        fair = self._most_waiting / (owners + (own == 0))
        return self.waiting >= self._most_waiting and (
            own >= fair or self.waiting >= 2 * self._most_waiting
        )

    def enter_again(self, owner: str) -> None:
        """Run on without waiting."""
        self._share.enter(owner)

    def leave(self, owner: str) -> None:
        """Make room for the next."""
        self._share.leave(owner)
        while self._share.waiting and (found := self._share.pop()) is not None:
            owner, turn = found
            if turn.done():
                self._share.leave(owner)
            else:
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
        self._owner = OWNER.get()

    async def __aenter__(self) -> Self:
        await self._concurrency.enter(self._owner, self._holder)
        self._open = True
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Leave the place, whatever calls of the execution are still open."""
        if self._open and self._calls == 0:
            self._concurrency.leave(self._owner)
        self._open = False

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Around a call to the client."""
        self._calls += 1
        if self._calls == 1 and self._open:
            self._concurrency.leave(self._owner)
        try:
            yield
        finally:
            self._calls -= 1
            if self._calls == 0 and self._open:
                self._concurrency.enter_again(self._owner)
