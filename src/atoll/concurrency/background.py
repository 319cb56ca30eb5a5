"""Tasks that nothing awaits: kept alive, and their faults logged instead of lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from atoll.concurrency.shares import acting_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

_LOG = logging.getLogger("atoll")


class Background:
    """The tasks that a part of the program has started and does not wait for."""

    def __init__(self, log: logging.Logger = _LOG) -> None:
        self._log = log
        self._tasks: set[asyncio.Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any], *, shared: bool = False) -> asyncio.Task[Any]:
        """Start a task; `shared`: it serves all clients, and counts as none's."""
        loop = asyncio.get_running_loop()
        if shared:
            with acting_for(""):
                task = loop.create_task(work)
        else:
            task = loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def watch(
        self, name: str, pause: Callable[[], float], *steps: Callable[[], Awaitable[None] | None]
    ) -> asyncio.Task[Any]:
        """Take the steps again and again, after a pause each time, until the task is cancelled.

        A step that fails is logged and keeps neither the others nor its next time from happening.
        """
        return self.spawn(self._watch(name, pause, steps), shared=True)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for all tasks, at most so long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in list(self._tasks):
            task.cancel()

    async def _watch(
        self,
        name: str,
        pause: Callable[[], float],
        steps: tuple[Callable[[], Awaitable[None] | None], ...],
    ) -> None:
        while True:
            await asyncio.sleep(pause())
            for step in steps:
                try:
                    waiting = step()
                    if waiting is not None:
                        await waiting
                except Exception:  # noqa: BLE001 - the edge of a step
                    step_name = getattr(step, "__qualname__", repr(step))
                    self._log.exception("%s: %s failed; it is tried again", name, step_name)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._log.error("a task in the background failed", exc_info=fault)


async def both_ways(*ways: Coroutine[Any, Any, None], until: str = asyncio.ALL_COMPLETED) -> None:
    """Run the directions of a connection until all have ended, or one has failed; none goes on.

    The loop has let go of their descriptors then: these can be closed, and used again.
    """
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        if until == asyncio.ALL_COMPLETED:
            await asyncio.gather(*tasks)
        else:
            await asyncio.wait(tasks, return_when=until)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
