"""Fair shares of threads and running places among the clients of one process.

Whose work a task does is in `OWNER`, which tasks and threads inherit: the id of an API key in the
service, the process of a client in the daemon, empty for the process's own work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from atoll.concurrency import forks
from atoll.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    P = ParamSpec("P")

T = TypeVar("T")
R = TypeVar("R")
OWNER: ContextVar[str] = ContextVar("OWNER", default="")
MAX_THREADS = 16
MAX_THREADS_OF_ONE = 4
RESERVED_THREADS = 240
"""Threads besides MAX_THREADS, for owners of which nothing runs."""


@contextlib.contextmanager
def acting_for(owner: str) -> Iterator[None]:
    """Let tasks that are started inside do the work of an owner; empty: of the process itself.

    What serves all clients has to be started so: else it would wait behind the work of the client
    that happened to need it first.
    """
    before = OWNER.set(owner)
    try:
        yield
    finally:
        OWNER.reset(before)


class FairShare(Generic[T]):
    """Decides whose work starts next. It is not thread-safe.

    An owner of which nothing runs starts at once, while `reserve` lasts: whatever others run or
    have waiting, it waits for none of them. Otherwise at most `most` run, and at most
    `most_of_one` of one owner; the next to start is of the owner that has the fewest running, and
    among these of the one that started something the longest time ago.
    """

    def __init__(self, most: int, *, most_of_one: int | None = None, reserve: int = 0) -> None:
        self._most, self._most_of_one, self._reserve = most, most_of_one or most, reserve
        self._of_owner: dict[str, int] = {}
        self._queues: dict[str, deque[T]] = {}
        """The work that waits, by owner; owners in the order of their turns."""
        self.running = self.waiting = 0

    @property
    def owners_waiting(self) -> int:
        """How many owners have work that waits."""
        return len(self._queues)

    def waiting_of(self, owner: str) -> int:
        """Return how much work of an owner waits."""
        return len(self._queues.get(owner, ()))

    def may_start(self, owner: str) -> bool:
        """Return whether something of an owner may start now."""
        own = self._of_owner.get(owner, 0)
        if own == 0:
            return self.running < self._most + self._reserve
        return self.running < self._most and (own < self._most_of_one or not owner)

    def try_enter(self, owner: str) -> bool:
        """Count one more that runs if it may start now, ahead of none of its owner's own."""
        if owner in self._queues or not self.may_start(owner):
            return False
        self.running += 1
        self._of_owner[owner] = self._of_owner.get(owner, 0) + 1
        return True

    def enter(self, owner: str) -> None:
        """Count one more that runs, whether there is room for it or not."""
        self.running += 1
        self._of_owner[owner] = self._of_owner.get(owner, 0) + 1

    def leave(self, owner: str) -> None:
        """Count the end of a holder."""
        self.running -= 1
        self._of_owner[owner] -= 1
        if not self._of_owner[owner]:
            del self._of_owner[owner]

    def push(self, owner: str, work: T) -> None:
        """Let work wait for its turn."""
        self._queues.setdefault(owner, deque()).append(work)
        self.waiting += 1

    def pop(self) -> tuple[str, T] | None:
        """Return the work that starts next with its owner, and count it; None if none may."""
        able = (owner for owner in self._queues if self.may_start(owner))
        owner = min(able, key=lambda owner_key: self._of_owner.get(owner_key, 0), default=None)
        if owner is None:
            return None
        queue = self._queues.pop(owner)
        work = queue.popleft()
        if queue:
            self._queues[owner] = queue  # behind all others
        self.waiting -= 1
        self.enter(owner)
        return owner, work

    def clear(self) -> list[tuple[str, T]]:
        """Forget all work that waits; return it with its owners."""
        left = [(owner, work) for owner, queue in self._queues.items() for work in queue]
        self._queues, self.waiting = {}, 0
        return left

    def remove(self, owner: str, work: T) -> None:
        """Forget work that waits, if it does."""
        queue = self._queues.get(owner)
        if queue is None or work not in queue:
            return
        queue.remove(work)
        self.waiting -= 1
        if not queue:
            del self._queues[owner]


class FairThreads(ThreadPoolExecutor):
    """Threads that the clients of a process share fairly; made to be a loop's default executor.

    Then `asyncio.to_thread`, `run_in_executor(None, ...)` and the loop's own look-ups of names all
    go through it, and no code can block other clients by forgetting to.
    """

    def __init__(
        self,
        most: int = MAX_THREADS,
        most_of_one: int = MAX_THREADS_OF_ONE,
        reserve: int = RESERVED_THREADS,
    ) -> None:
        super().__init__(most + reserve, thread_name_prefix="atoll")
        self.share: FairShare[_Job] = FairShare(most, most_of_one=most_of_one, reserve=reserve)
        self._guard, self._closed = forks.new_lock(), False

    def waiting_of(self, owner: str) -> int:
        """Return how much work of an owner waits for a thread."""
        with self._guard:
            return self.share.waiting_of(owner)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a function in a thread when it is the turn of the current OWNER."""
        owner, job = OWNER.get(), _Job(lambda: fn(*args, **kwargs))
        job.future.add_done_callback(lambda _: self._forget(owner, job))
        with self._guard:
            if self._closed:
                raise RuntimeError("the threads have been shut down")
            self.share.push(owner, job)
            self._start()
        return job.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as its base has it
        """Take no more work; start what waits, or cancel it."""
        with self._guard:
            self._closed = True
            left = self.share.clear()
            for owner, job in left if not cancel_futures else ():
                self.share.enter(owner)
                super().submit(self._run, owner, job)
        for _, job in left if cancel_futures else ():
            job.future.cancel()
        super().shutdown(wait, cancel_futures=cancel_futures)

    def _start(self) -> None:
        while (next_job := self.share.pop()) is not None:
            super().submit(self._run, *next_job)

    def _run(self, owner: str, job: _Job) -> None:
        try:
            job.run()
        finally:
            with self._guard:
                self.share.leave(owner)
                self._start()

    def _forget(self, owner: str, job: _Job) -> None:
        """Forget a job whose caller has gone before its turn."""
        if job.future.cancelled():
            with self._guard:
                self.share.remove(owner, job)


class _Job:
    """A function to be called in a thread, and who waits for its result."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._call: Callable[[], Any] | None = call

    def run(self) -> None:
        """Call the function, unless it was cancelled."""
        call, self._call = self._call, None  # it may hold much
        if call is None or not self.future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as exc:  # noqa: BLE001 - it is raised where the result is awaited
            self.future.set_exception(exc)
        else:
            self.future.set_result(result)


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
        self.share: FairShare[asyncio.Future[bool]] = FairShare(most_running, reserve=most_running)

    @property
    def running(self) -> int:
        """How many run."""
        return self.share.running

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return self.share.waiting

    def slot(
        self, holder: Waiter | None = None, on_wait: Callable[[int], None] | None = None
    ) -> Slot:
        """Return a place among the running, taken in `async with`; BusyError if too many wait.

        `on_wait` receives its place among those of the same owner, and nothing about others.
        """
        return Slot(self, holder, on_wait)

    async def wait(
        self, owner: str, holder: Waiter, on_wait: Callable[[int], None] | None = None
    ) -> None:
        """Wait for a place among the running; BusyError if too many wait."""
        if self._crowded(owner):
            raise BusyError(
                f"{self.running} executions run and {self.waiting} wait: try again later"
            )
        if on_wait is not None:
            on_wait(self.share.waiting_of(owner) + 1)
        turn = holder.turn = asyncio.get_running_loop().create_future()
        self.share.push(owner, turn)
        try:
            if not await turn:
                raise CancelledInQueueError
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.leave(owner)  # its turn came as its caller went
            raise
        finally:
            holder.turn = None
            self.share.remove(owner, turn)

    def _crowded(self, owner: str) -> bool:
        """Return whether an owner may not wait: the queue is full, and the owner has its share."""
        own, owners = self.share.waiting_of(owner), self.share.owners_waiting
        fair = self._most_waiting / (owners + (own == 0))
        return self.waiting >= self._most_waiting and (
            own >= fair or self.waiting >= 2 * self._most_waiting
        )

    def leave(self, owner: str) -> None:
        """Make room for the next."""
        self.share.leave(owner)
        while self.share.waiting and (next_turn := self.share.pop()) is not None:
            owner, turn = next_turn
            if turn.done():
                self.share.leave(owner)
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


@dataclass(slots=True)
class Slot:
    """The place of one running execution. It is not counted while it waits for its client.

    Otherwise executions that wait for sub-executions could take every place, and none go on.
    """

    _concurrency: ConcurrencyLimit
    _holder: Waiter | None
    _on_wait: Callable[[int], None] | None
    _calls: int = 0
    _open: bool = False
    _owner: str = field(default_factory=OWNER.get)

    async def __aenter__(self) -> Self:
        if not self._concurrency.share.try_enter(self._owner):
            holder = self._holder or Waiter()
            await self._concurrency.wait(self._owner, holder, self._on_wait)
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
                self._concurrency.share.enter(self._owner)
