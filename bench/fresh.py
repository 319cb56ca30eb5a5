"""Rows about fresh sandboxes of a pool, one for each request: latency and rate."""

from __future__ import annotations

import asyncio
import functools
import itertools
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from atoll.hosting.pool import TIERS
from bench import warm
from bench.rows import Arms, Goal, row, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.config import SandboxConfig
    from bench.rows import Scale

FRAME = """
import numpy as np
import pandas as pd
frame = pd.DataFrame({"kind": list("abcab") * 20, "value": np.arange(100.0)})
print(frame.groupby("kind").value.agg(["mean", "sum"]))
"""
PASS = "python -c pass"
EIGHTH, TWO_HUNDREDTH = Goal(ratio=1 / 8), Goal(ratio=1 / 200)
REQUESTS, QUICK_REQUESTS = 96, 4
TIMES = {"bare": Goal(times=2.0), "full": Goal(times=1.0)}
"""Executions at one time, which keep the cores busy."""


@row(what="fresh, full preload, parked: print('hi')", against=PASS, rounds=50, goal=EIGHTH)
def fresh_full(_scale: Scale) -> Iterator[Arms]:
    yield _against_python("full", warm.HI, "pass")


@row(what="fresh, bare, parked: print('hi')", against=PASS, rounds=50, goal=EIGHTH)
def fresh_bare(_scale: Scale) -> Iterator[Arms]:
    yield _against_python("bare", warm.HI, "pass")


@row(
    what="fresh, parked: import numpy, pandas; aggregate a frame",
    against="the same in a new python",
    rounds=20,
    goal=TWO_HUNDREDTH,
)
def fresh_frame(_scale: Scale) -> Iterator[Arms]:
    yield _against_python("numeric", FRAME, FRAME)


@row(
    what="fresh, full preload, parked: the same frame",
    against="a new python that imports the preload",
    rounds=5,
    goal=TWO_HUNDREDTH,
)
def fresh_full_frame(_scale: Scale) -> Iterator[Arms]:
    preload = "\n".join(("import matplotlib; matplotlib.use('Agg')", *TIERS["full"]))
    yield _against_python("full", FRAME, preload + FRAME)


def _against_python(tier: str, ours: str, theirs: str) -> Arms:
    pool = warm.shared()
    return Arms(ours=pool.fresh(pool.config(tier), ours), theirs=timed(lambda: run_python(theirs)))


def run_python(code: str) -> None:
    """Run code in a new interpreter."""
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)


def _rate_arms(tier: str, workers: int, scale: Scale) -> Iterator[Arms]:
    """Return both rates; destroying each sandbox is included."""
    pool = warm.shared()
    config = pool.config(tier)
    count = max(workers, QUICK_REQUESTS) if scale.quick else REQUESTS
    yield Arms(
        ours=lambda: pool.run(_rate(pool, config, workers, count)),
        theirs=lambda: _rate_of_python(workers, count),
    )


async def _rate(pool: warm.Warm, config: SandboxConfig, workers: int, count: int) -> float:
    async def work() -> None:
        for _ in range(count // workers):
            async with await pool.open(config) as box:
                result = await box.execute(warm.HI)
                assert result.success, result

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(workers)))
    return count / (time.perf_counter() - started)


def _rate_of_python(workers: int, count: int) -> float:
    with ThreadPoolExecutor(workers) as threads:
        started = time.perf_counter()
        list(threads.map(run_python, ["pass"] * count))
        return count / (time.perf_counter() - started)


for _tier, _workers in itertools.product(("bare", "numeric", "full"), (1, 4, 16)):
    row(
        name=f"rate-{_tier}-{_workers}",
        what=f"fresh executions, {_tier}, {_workers} at a time",
        against=f"{PASS}, {_workers} at a time",
        rounds=5,
        unit="/s",
        goal=TIMES.get(_tier) if _workers > 1 else None,
    )(functools.partial(_rate_arms, _tier, _workers))
