"""Rows about live sessions of a pool: a cell, a clone with all its data, a checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

from atoll import ExecutionPolicy, SyncSandbox
from atoll.concurrency.portal import Portal
from atoll.config import SandboxConfig
from atoll.hosting.pool import Pool, PooledSandbox
from bench import kernel, warm
from bench.execute import CELL, CELLS, timed_in
from bench.rows import Arms, Goal, needs, row, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Probe, Scale

BARE = SandboxConfig(preload="bare")
TWENTIETH = Goal(ratio=1 / 20)
FIFTIETH = Goal(ratio=1 / 50, at_full_size=True)
BYTES_A_NUMBER, ROOM = 8, 4
ROUND_TRIP = "cloudpickle dumps + loads"


@row(what="a warm pooled cell, blocking API", against="ipykernel", rounds=50, goal=TWENTIETH)
def pooled_sync(_scale: Scale) -> Iterator[Arms]:
    with kernel.blocking() as run_theirs, _blocking_session() as box:
        ours = timed(lambda: box.execute(CELL), times=CELLS)
        yield Arms(ours=ours, theirs=timed(lambda: run_theirs(CELL), times=CELLS))


@row(
    what="a warm pooled cell, async API",
    against="ipykernel, async client",
    rounds=50,
    goal=TWENTIETH,
)
def pooled_async(_scale: Scale) -> Iterator[Arms]:
    pool = warm.shared()
    with kernel.asynchronous(pool.runner) as run_theirs, pool.session(BARE) as box:
        ours = timed_in(pool.runner, lambda: box.execute(CELL))
        yield Arms(ours=ours, theirs=timed_in(pool.runner, lambda: run_theirs(CELL)))


@row(what="fork() with {size} of numpy", against=ROUND_TRIP, rounds=10, goal=FIFTIETH)
def fork(scale: Scale) -> Iterator[Arms]:
    with session_with_array(scale.context_bytes) as (pool, box):
        yield Arms(ours=lambda: pool.run(time_fork(box)), theirs=_round_trip(scale))


@row(what="checkpoint() + rollback() with {size} of numpy", against=ROUND_TRIP, rounds=10)
def rollback(scale: Scale) -> Iterator[Arms]:
    with session_with_array(scale.context_bytes) as (pool, box):
        yield Arms(ours=timed(lambda: pool.run(_there_and_back(box))), theirs=_round_trip(scale))


@contextlib.contextmanager
def _blocking_session() -> Iterator[SyncSandbox]:
    """Yield a session of a pool in the event loop of blocking callers."""
    portal = Portal.shared()
    pool = portal.run(_open_pool())
    try:
        with SyncSandbox(portal.run(_open(pool))) as box:
            yield box
    finally:
        portal.run(pool.close())


async def _open_pool() -> Pool:
    return Pool()


async def _open(pool: Pool) -> PooledSandbox:
    box = PooledSandbox(BARE, pool)
    await box.initialize()
    return box


@contextlib.contextmanager
def session_with_array(size: int) -> Iterator[tuple[warm.Warm, PooledSandbox]]:
    """Open a session that holds an array of `size` bytes."""
    pool = warm.shared()
    policy = ExecutionPolicy(memory_bytes=size * ROOM)
    config = dataclasses.replace(pool.config("numeric"), policy=policy)
    with pool.session(config) as box:
        code = f"import numpy as np\narray = np.ones({size // BYTES_A_NUMBER})"
        result = pool.run(box.execute(code))
        assert result.success, result
        yield pool, box


async def time_fork(box: PooledSandbox) -> float:
    """Return the seconds until the clone is ready; destroying it is not measured."""
    started = time.perf_counter()
    twin = await box.fork()
    took = time.perf_counter() - started
    await twin.destroy()
    return took


async def _there_and_back(box: PooledSandbox) -> None:
    mark = await box.checkpoint()
    await box.rollback(mark)


def _round_trip(scale: Scale) -> Probe:
    """Return a probe that pickles and unpickles the same array in this process."""
    needs("numpy", "cloudpickle", extra="data,state")
    import cloudpickle  # noqa: PLC0415 - an extra
    import numpy as np  # noqa: PLC0415 - an extra

    array = np.ones(scale.context_bytes // BYTES_A_NUMBER)
    return timed(lambda: cloudpickle.loads(cloudpickle.dumps(array)))
