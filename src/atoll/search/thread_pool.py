"""A few threads that do jobs in order until the results are enough; the caller is one of them."""

from __future__ import annotations

import os
from itertools import count
from threading import Thread
from typing import TYPE_CHECKING, Generic, TypeVar

from atoll.concurrency import forks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Job = TypeVar("Job")
Done = TypeVar("Done")
MOST_THREADS = 4


def run(work: Callable[[Job], Done], jobs: Iterable[Job]) -> list[Done]:
    """Return the results of all jobs, in order."""
    return ThreadPool(work, jobs, lambda _: 0, 1).run()


class ThreadPool(Generic[Job, Done]):
    """Works until the results, in order, reach the weight `enough`; later ones are dropped."""

    def __init__(
        self,
        work: Callable[[Job], Done],
        jobs: Iterable[Job],
        weigh: Callable[[Done], int],
        enough: int,
    ) -> None:
        self._work, self._weigh, self._enough = work, weigh, enough
        self._jobs, self._numbers = iter(jobs), count()
        self._lock, self._stopped = forks.new_lock(), False
        self._early: dict[int, Done] = {}
        self._done: list[Done] = []
        self._weight = self._early_weight = 0
        self._failure: BaseException | None = None

    def run(self) -> list[Done]:
        """Return the results in order, up to the one that reached `enough`."""
        # A first job by the caller alone: if it finds enough, no thread is started.
        if self._step() and not self._stopped:
            helpers = [Thread(target=self._loop) for _ in range(threads() - 1)]
            for helper in helpers:
                helper.start()
            self._loop()
            for helper in helpers:
                helper.join()
        if self._failure is not None:
            raise self._failure
        return self._done

    def _loop(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as exc:  # noqa: BLE001 - it is raised where the caller waits
            self._failure, self._stopped = exc, True

    def _step(self) -> bool:
        with self._lock:
            # The results that other threads are working on complete it: more would be dropped.
            if self._stopped or self._weight + self._early_weight >= self._enough:
                return False
            job = next(self._jobs, None)
            number = next(self._numbers)
        if job is None:
            return False
        done = self._work(job)
        with self._lock:
            self._add(number, done)
        return True

    def _add(self, number: int, done: Done) -> None:
        self._early[number] = done
        self._early_weight += self._weigh(done)
        while not self._stopped and len(self._done) in self._early:
            first = self._early.pop(len(self._done))
            self._done.append(first)
            weight = self._weigh(first)
            self._weight, self._early_weight = self._weight + weight, self._early_weight - weight
            self._stopped = self._weight >= self._enough


def threads() -> int:
    """Return how many threads work at once, the caller included."""
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0))))
