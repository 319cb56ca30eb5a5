"""Chaos on a fleet: cells in many sessions while nodes are killed, and one is frozen and thawed.

    python -m bench.chaos_fleet [--sessions 100] [--cells 20] [--seconds 120] [--store URL]

Every cell has a key and a known answer. At the end each session's log is read: no answer was wrong,
no key has two results, no entry of an old owner follows a claim, and every caller was answered.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.aio import create_sandbox
from atoll.errors import AtollError
from atoll.fleet.client import Fleet
from atoll.fleet.log import CLAIM, SessionLog
from atoll.fleet.store import Store
from bench.local_fleet import LocalFleet, free_port

NODES = ("a", "b", "c")
KILL_SECONDS = 15.0
FROZEN_SECONDS = 8.0
CALL_SECONDS = 120.0
START = "n, trace = 0, []"
CELL = "n += 1; trace.append({0}); (n, sum(trace))"


@dataclass
class Findings:
    """Counts of a run; `faults` has to stay empty."""

    answers: int = 0
    retried: int = 0
    kills: int = 0
    freezes: int = 0
    longest: float = 0.0
    claims: int = 0
    entries: int = 0
    faults: list[str] = field(default_factory=list)


async def work(number: int, cells: int, pause: float, found: Findings) -> str:
    """Run one session's cells, each until it is answered; return the session's name."""
    box: Any = await create_sandbox(backend="ray", durability="cell", auto_recover=True)
    await call(box, START, "start", found)
    for cell in range(cells):
        await asyncio.sleep(random.uniform(0, 2 * pause))
        value = await call(box, CELL.format(cell), f"cell {cell}", found)
        wanted = (cell + 1, sum(range(cell + 1)))
        if value != wanted:
            found.faults.append(f"session {number}, cell {cell}: {value}, not {wanted}")
        found.answers += 1
    session = str(box.session)
    await box.detach()
    return session


async def call(box: Any, code: str, key: str, found: Findings) -> Any:
    """Run a cell under its key; a retryable error is tried again, as a caller would."""
    begun = time.monotonic()
    while True:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                result = await box.execute(code, key=key)
        except AtollError as exc:
            if not exc.retryable or time.monotonic() - begun > CALL_SECONDS:
                found.faults.append(f"{key}: {type(exc).__name__}: {exc}")
                return None
            found.retried += 1
            await asyncio.sleep(0.2)
            continue
        except TimeoutError:
            found.faults.append(f"{key}: no answer within {CALL_SECONDS:g} s")
            return None
        found.longest = max(found.longest, time.monotonic() - begun)
        if result.error:
            found.faults.append(f"{key}: {result.error}")
        return result.value


async def harm(fleet: LocalFleet, found: Findings) -> None:
    """Kill a node every KILL_SECONDS and start it again; freeze the second for a while before.

    One that starts slowly does not keep the others from harm, as long as two are up.
    """
    up, starting = list(NODES), set[asyncio.Task[None]]()

    async def start(name: str) -> None:
        await asyncio.to_thread(fleet.add, name)
        up.append(name)

    while True:
        await asyncio.sleep(KILL_SECONDS)
        if len(up) < 2:
            continue
        name = up.pop(0)
        if found.kills == 1:
            await freeze(fleet, name)
            found.freezes += 1
        fleet.kill(name)
        found.kills += 1
        print(
            f"  {found.answers} answers, {found.kills} kills, {found.retried} retries", flush=True
        )
        starting.add(asyncio.ensure_future(start(name)))


async def freeze(fleet: LocalFleet, name: str) -> None:
    """Stop a node for longer than it takes to be given up; it wakes, and tries to go on."""
    fleet.send(name, signal.SIGSTOP)
    await asyncio.sleep(FROZEN_SECONDS)
    fleet.send(name, signal.SIGCONT)
    await asyncio.sleep(FROZEN_SECONDS / 2)


async def check_log(store: Store, session: str, cells: int, found: Findings) -> None:
    """Check a session's log: complete numbers, one owner at a time, one result for each key."""
    entries = await SessionLog(store, session).entries()
    found.entries += len(entries)
    found.claims += sum(one.kind == CLAIM for one in entries)
    if [one.number for one in entries] != list(range(1, len(entries) + 1)):
        found.faults.append(f"{session}: numbers are missing")
    for before, after in itertools.pairwise(entries):
        if after.epoch < before.epoch:
            found.faults.append(f"{session}: entry {after.number} is of an owner that had lost it")
    keys = [key for one in entries for key in one.results]
    if len(keys) != len(set(keys)):
        found.faults.append(f"{session}: a key has two results")
    if len(keys) != cells + 1:
        found.faults.append(f"{session}: {len(keys)} results by key, not {cells + 1}")


async def all_nodes() -> None:
    """Wait until the driver knows every node."""
    async with Fleet.connect() as client:
        for _ in range(600):
            if len((await client.status())["nodes"]) == len(NODES):
                return
            await asyncio.sleep(0.2)
    raise AssertionError("not all nodes have joined")


async def run(fleet: LocalFleet, args: argparse.Namespace) -> Findings:
    """Run the chaos and read the logs."""
    found = Findings()
    os.environ.update(fleet.environment())
    await all_nodes()
    pause = args.seconds / args.cells
    print(f"{args.sessions} sessions of {args.cells} cells on {len(NODES)} nodes ...", flush=True)
    harming = asyncio.ensure_future(harm(fleet, found))
    jobs = (work(one, args.cells, pause, found) for one in range(args.sessions))
    done = await asyncio.gather(*jobs, return_exceptions=True)
    harming.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await harming
    if not found.freezes:
        found.faults.append("no node was frozen, the run shows little: give it more --seconds")
    store = Store(fleet.settings.store)
    for one in done:
        if isinstance(one, BaseException):
            found.faults.append(f"a session failed: {one!r}")
        else:
            await check_log(store, one, args.cells, found)
    return found


def main() -> int:
    """Print what was found; return 1 if there is any fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--cells", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--store")
    args = parser.parse_args()
    os.environ.setdefault("ATOLL_STATE_KEY", "a key for chaos alone")
    with tempfile.TemporaryDirectory(prefix="atoll-chaos-") as folder:
        fleet = LocalFleet(Path(folder), free_port(), args.store, keep_log=True)
        try:
            fleet.start(*NODES)
            found = asyncio.run(run(fleet, args))
        finally:
            fleet.stop()
    print(
        f"{found.answers} answers, {found.kills} nodes killed, {found.freezes} frozen, "
        f"{found.retried} retries, {found.claims} takeovers, {found.entries} entries; the longest "
        f"call took {found.longest:.1f} s; {len(found.faults)} faults"
    )
    for fault in found.faults[:20]:
        print(f"  {fault}")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
