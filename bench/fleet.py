"""What a fleet costs: `python -m bench.fleet [--context BYTES] [--items N]`; it starts two nodes.

An execution through the fleet is set against a bare call of a Ray actor and a direct cell, which
take turns with it in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import atoll
from atoll.aio import create_sandbox
from atoll.fleet import cluster
from atoll.fleet.client import Fleet
from atoll.fleet.log import SessionLog
from atoll.fleet.store import Store
from atoll.hosting.pool import Pool, PoolSettings
from bench.local_fleet import LocalFleet, free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ROUNDS = 200
AT_ONCE = 32
CELLS_AT_ONCE = 640
SLEEPS = "import time; time.sleep(0.02)"
BIG = "data = __import__('os').urandom(10_000_000)"


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    """Return the milliseconds that a call takes."""
    begun = time.perf_counter()
    await work()
    return (time.perf_counter() - begun) * 1e3


def say(what: str, text: str) -> None:
    """Print one row."""
    print(f"{what:<70}{text}", flush=True)


async def rate(boxes: list[Any], code: str, count: int) -> float:
    """Return cells per second in all boxes at one time."""

    async def some(box: Any) -> None:
        for _ in range(count // len(boxes)):
            await box.execute(code)

    begun = time.perf_counter()
    await asyncio.gather(*(some(box) for box in boxes))
    return count / (time.perf_counter() - begun)


async def bench_execute(pool: Pool, address: str) -> None:
    """Compare one cell: direct, bare actor call, through the fleet."""
    await asyncio.to_thread(cluster.connect, address)
    bare = _bare_actor()
    direct = await pool.open(atoll.SandboxConfig())
    box = await create_sandbox(backend="ray")
    rows: dict[str, list[float]] = {"direct": [], "bare": [], "fleet": []}
    for _ in range(ROUNDS):
        rows["direct"].append(await timed(lambda: direct.execute("1")))
        rows["bare"].append(await timed(lambda: _await(bare.nothing.remote())))
        rows["fleet"].append(await timed(lambda: box.execute("1")))
    one, call, all_of_it = (statistics.median(rows[name]) for name in ("direct", "bare", "fleet"))
    say(
        "a cell: direct / a bare actor call / through the fleet",
        f"{one:.2f} / {call:.2f} / {all_of_it:.2f} ms",
    )
    say("  through the fleet / (bare call + direct)", f"{all_of_it / (one + call):.2f}x")
    await direct.destroy()
    await box.destroy()
    cluster.library().shutdown()


async def bench_rates(pool: Pool) -> None:
    """Compare cells per second of 32 sessions at one time."""
    direct = [await pool.open(atoll.SandboxConfig()) for _ in range(AT_ONCE)]
    boxes = [await create_sandbox(backend="ray") for _ in range(AT_ONCE)]
    for name, code in (("empty cells", "1"), ("cells that wait 20 ms", SLEEPS)):
        ours, theirs = [], []
        for _ in range(3):
            theirs.append(await rate(direct, code, CELLS_AT_ONCE))
            ours.append(await rate(boxes, code, CELLS_AT_ONCE))
        a, b = statistics.median(theirs), statistics.median(ours)
        say(
            f"{name} at {AT_ONCE} at one time: direct / fleet",
            f"{a:.0f} / {b:.0f} per s: {b / a:.2f}",
        )
    for box in (*direct, *boxes):
        await box.destroy()


async def bench_opens() -> None:
    """Measure how many sessions are opened in a second."""
    for durability in ("none", "cell"):
        begun = time.perf_counter()
        for _ in range(20):
            await (await create_sandbox(backend="ray", durability=durability)).destroy()
        one_by_one = 20 / (time.perf_counter() - begun)
        begun = time.perf_counter()
        opening = (create_sandbox(backend="ray", durability=durability) for _ in range(60))
        boxes = await asyncio.gather(*(_await(one) for one in opening))
        at_once = 60 / (time.perf_counter() - begun)
        await asyncio.gather(*(box.destroy() for box in boxes))
        say(
            f"sessions opened per s, durability {durability}: one by one / 60 at once",
            f"{one_by_one:.0f} / {at_once:.0f}",
        )


async def bench_states(fleet: LocalFleet) -> None:
    """Measure commits, a restore of 10 MB, and the time from a kill to an answer."""
    box: Any = await create_sandbox(backend="ray", durability="cell", auto_recover=True)
    small = statistics.median([await timed(lambda: box.execute("x = 1")) for _ in range(30)])
    say("a cell with its commit, tiny state", f"{small:.1f} ms")
    say("a cell with its commit, 10 MB", f"{await timed(lambda: box.execute(BIG)):.0f} ms")
    async with Fleet.connect() as client:
        taken: list[Any] = []

        async def take() -> None:
            taken.append(await client.attach(box.session))

        say("restore of 10 MB on a claim", f"{await timed(take):.0f} ms")
        await taken[0].destroy()
    times = []
    for name in ("a", "b"):
        boxes = [
            await create_sandbox(backend="ray", durability="cell", auto_recover=True)
            for _ in range(20)
        ]
        await asyncio.gather(*(one.execute("x = 1") for one in boxes))
        store = Store(fleet.settings.store)
        owners = [(await SessionLog(store, one.session).last()).owner for one in boxes]  # type: ignore[attr-defined]
        fleet.kill(name)
        begun = time.perf_counter()
        lost = [one for one, owner in zip(boxes, owners, strict=True) if owner == name]
        await asyncio.gather(*(one.execute("x", key="after") for one in lost))
        times.append(f"{time.perf_counter() - begun:.1f} s ({len(lost)} sessions)")
        await asyncio.gather(*(one.destroy() for one in boxes))
        await asyncio.to_thread(fleet.add, name)
        await _nodes(2)
    say("from kill -9 of a node to the last answer of its sessions", ", ".join(times))


async def bench_context(size: int) -> None:
    """Measure a large context: the first guest of each node, and ten more."""
    text = "The quick brown fox jumps over it\n" * (size // 34)
    begun = time.perf_counter()
    boxes: list[Any] = []
    for count in (1, 1, 10):
        begun = time.perf_counter()
        for _ in range(count):
            boxes.append(await create_sandbox(backend="ray", context=text))  # noqa: PERF401
        say(
            f"{count} session(s) with a context of {len(text) / 1e6:,.0f} MB",
            f"{time.perf_counter() - begun:.2f} s",
        )
    assert (await boxes[-1].execute("len(context)")).value == len(text)
    for box in boxes:
        await box.destroy()


async def bench_map(fleet: LocalFleet, count: int) -> None:
    """Run a job array, and kill a node in the middle of it."""
    killed = False

    def on_progress(done: int, total: int) -> None:
        nonlocal killed
        if done == total // 2 and not killed:
            killed = True
            fleet.kill("b")

    begun = time.perf_counter()
    async with Fleet.connect() as client:
        found = await client.map("context * 2", range(count), on_progress=on_progress)
    seconds = time.perf_counter() - begun
    right = sum(one.result is not None and one.result.value == 2 * one.index for one in found)
    again = sum(one.attempts - 1 for one in found)
    say(
        f"a job array of {count:,} items, a node killed in the middle",
        f"{seconds:.0f} s: {count / seconds:.0f} per s; {right:,} right, {again} tried again",
    )


async def _await(work: Awaitable[Any]) -> Any:
    return await work


async def _nodes(count: int) -> None:
    async with Fleet.connect() as client:
        for _ in range(600):
            if len((await client.status())["nodes"]) == count:
                return
            await asyncio.sleep(0.1)
    raise AssertionError("not all nodes have joined")


def _bare_actor() -> Any:
    ray = cluster.library()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    class Bare:
        """Does nothing, on a node of the fleet."""

        async def nothing(self) -> None:
            """Return."""

    where = NodeAffinitySchedulingStrategy(cluster.nodes()[0].ident, soft=False)
    actor = ray.remote(Bare).options(num_cpus=0, scheduling_strategy=where).remote()
    ray.get(actor.nothing.remote())
    return actor


async def run(fleet: LocalFleet, args: argparse.Namespace) -> None:
    """Measure everything."""
    await _nodes(2)
    async with Pool(PoolSettings(default_tier="bare")) as pool:
        await bench_execute(pool, fleet.address)
        await bench_rates(pool)
    await bench_opens()
    await bench_states(fleet)
    await bench_context(args.context)
    if args.items:
        await bench_map(fleet, args.items)


def main() -> None:
    """Start a fleet and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=1_000_000_000)
    parser.add_argument("--items", type=int, default=1000, help="of the job array; 0: none")
    args = parser.parse_args()
    os.environ.setdefault("ATOLL_STATE_KEY", "a key for the benchmark alone")
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        fleet = LocalFleet(Path(folder), free_port())
        try:
            fleet.start("a", "b")
            os.environ.update(fleet.environment())
            asyncio.run(run(fleet, args))
        finally:
            fleet.stop()


if __name__ == "__main__":
    main()
