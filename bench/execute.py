"""Rows about a cell in a live session, compared with a Jupyter kernel, blocking and async."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import atoll
from bench import kernel
from bench.rows import Arms, Goal, row, timed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from bench.rows import Probe, Scale

CELL = "x = 1"
CELLS = 10
"""Cells in a row, so that both are warm: in turns, each would find the other's data in caches."""
FIFTEENTH, TWENTIETH = Goal(ratio=1 / 15), Goal(ratio=1 / 20)


@row(what="a warm cell, blocking API", against="ipykernel", rounds=50, goal=FIFTEENTH)
def execute_sync(_scale: Scale) -> Iterator[Arms]:
    with kernel.blocking() as run_theirs, atoll.create_sandbox(backend="native") as box:
        ours = timed(lambda: box.execute(CELL), times=CELLS)
        yield Arms(ours=ours, theirs=timed(lambda: run_theirs(CELL), times=CELLS))


@row(what="a warm cell, async API", against="ipykernel, async client", rounds=50, goal=TWENTIETH)
def execute_async(_scale: Scale) -> Iterator[Arms]:
    with asyncio.Runner() as runner, kernel.asynchronous(runner) as run_theirs:
        box = runner.run(_open())
        ours = timed_in(runner, lambda: box.execute(CELL))
        theirs = timed_in(runner, lambda: run_theirs(CELL))
        try:
            yield Arms(ours=ours, theirs=theirs)
        finally:
            runner.run(box.destroy())


async def _open() -> atoll.BaseSandbox:
    return await atoll.aio.create_sandbox(backend="native")


def timed_in(runner: asyncio.Runner, work: Callable[[], Awaitable[object]]) -> Probe:
    """Return a probe that measures inside the loop, without entering and leaving it."""

    async def once() -> float:
        started = time.perf_counter()
        for _ in range(CELLS):
            await work()
        return (time.perf_counter() - started) / CELLS

    return lambda: runner.run(once())
