"""What all loops of one run share: how much they may do at the same time, and tell for nothing."""

from __future__ import annotations

import asyncio
from collections import defaultdict

FREE_TOLD = 1_000
"""Sub-calls without a cost that a trajectory tells of: guest code can make them without end."""


class Lanes:
    """Calls to models at one time, over all depths; and runs at one time, at each depth.

    A run waits for the runs below it, so each depth has places of its own: if they shared them,
    parents could hold all that their children wait for.
    """

    def __init__(self, most: int) -> None:
        self.calls = asyncio.Semaphore(most)
        self._runs: defaultdict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(most)
        )
        self._told = 0
        self.hushed = False
        """Whether a trajectory knows that it is not told of all."""

    def runs(self, depth: int) -> asyncio.Semaphore:
        """The places for runs at this depth."""
        return self._runs[depth]

    def may_tell(self, paid: int) -> bool:
        """Whether a trajectory is told of one more sub-call, when so many were paid for."""
        if self._told >= paid + FREE_TOLD:
            return False
        self._told += 1
        return True
