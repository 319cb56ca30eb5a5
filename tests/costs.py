"""What a piece of work costs in CPU time, for tests that compare a large text with a small one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

ROUNDS = 3


def least_cpu_seconds(work: Callable[[], Any]) -> float:
    """Return the CPU time that this thread needs for `work`: the least of a few rounds.

    A busy machine only ever adds to it: cold caches, a neighbour on the same core. What other
    threads of the test process compute meanwhile (a service that tests share) does not count.
    """

    def cost() -> float:
        started = time.thread_time()
        work()
        return time.thread_time() - started

    return min(cost() for _ in range(ROUNDS))
