"""Results by idempotency key, so that a retry gets the first one's and runs nothing again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.types import SandboxResult

KEPT = 256


class Replies:
    """The last results of one session. A second call while the first runs waits for it."""

    def __init__(self) -> None:
        self._known: dict[str, asyncio.Task[SandboxResult]] = {}

    async def once(
        self, key: str | None, work: Callable[[], Awaitable[SandboxResult]]
    ) -> SandboxResult:
        """What `work` returned for this key, now or before; without a key it always runs."""
        if key is None:
            return await work()
        task = self._known.get(key)
        if task is None:
            task = asyncio.ensure_future(_as_coroutine(work))
            self._known[key] = task
            task.add_done_callback(lambda done: self._settle(key, done))
        return await asyncio.shield(task)

    def _settle(self, key: str, task: asyncio.Task[SandboxResult]) -> None:
        """Keep a result; forget a failure, as nothing has run that could be told."""
        if task.cancelled() or task.exception() is not None:
            self._known.pop(key, None)
        while len(self._known) > KEPT:
            self._known.pop(next(iter(self._known)))


async def _as_coroutine(work: Callable[[], Awaitable[SandboxResult]]) -> SandboxResult:
    return await work()
