"""`python -m bench.soak`: many fresh executions while zygotes are killed; none may be lost.

Every execution prints a number that nobody else has, in a sandbox where nobody has been. It is
answered, or gets an error that says to try again; and in the end nothing is left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import atoll
from atoll.config import SandboxConfig
from atoll.daemon.paths import DaemonPaths
from atoll.daemon.server import DaemonServer
from atoll.hosting.pool import Pool, PooledSandbox
from atoll.hosting.sessions import Storage
from atoll.jail.supervisor.client import supervisor
from atoll.state.store import SqliteStateStore
from bench import processes, remains

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MOST_LOST = 0.02
ANSWER_SECONDS = 120
SETTLE_SECONDS = 5
WARM_UP = 0.3
"""The share of executions before memory is counted: the allocator's pools fill up in it."""
CODE = """
open("been-here", "x").close()
assert "been_here" not in globals()
been_here = print({nonce!r})
"""

Run = Callable[[str], Awaitable[atoll.SandboxResult]]


@contextlib.asynccontextmanager
async def _through_pool(tier: str) -> AsyncIterator[Run]:
    config = SandboxConfig(preload=tier)
    async with Pool() as pool:

        async def run(code: str) -> atoll.SandboxResult:
            async with PooledSandbox(config, pool) as box:
                await box.initialize()
                return await box.execute(code)

        await pool.warm(tier)
        yield run


@contextlib.asynccontextmanager
async def _through_daemon(tier: str) -> AsyncIterator[Run]:
    """Yield a daemon in this process, so that its memory and descriptors are counted too."""

    async def run(code: str) -> atoll.SandboxResult:
        async with atoll.aio.create_sandbox(backend="daemon", preload=tier) as box:
            return await box.execute(code)

    with tempfile.TemporaryDirectory() as folder:
        place = DaemonPaths(Path(folder) / "soak.sock")
        os.environ["ATOLL_DAEMON_SOCKET"] = str(place.socket)
        store = SqliteStateStore(place.states)
        async with Pool() as pool:
            server = DaemonServer(pool.open, Storage(store=store), pool_stats=pool.stats)
            await server.start(place.listen())
            await pool.warm(tier)
            yield run
            await server.stop()
        store.close_all()


THROUGH = {"pool": _through_pool, "daemon": _through_daemon}


@dataclass(slots=True)
class Tally:
    """How the executions ended."""

    ends: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    kills: int = 0

    @property
    def done(self) -> int:
        """How many have ended."""
        return self.ends.total()

    def broken(self) -> list[str]:
        """The bounds that were exceeded, in words."""
        wrong = [f"{self.ends[end]} {end}" for end in ("crossed", "failed") if self.ends[end]]
        if self.ends["to be retried"] > self.done * MOST_LOST:
            wrong.append(f"{self.ends['to be retried']} lost: more than {MOST_LOST:.0%}")
        return wrong


class Soak:
    """One run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.tally = Tally()
        self._left = options.executions
        self._first_memory: dict[str, int] = {}

    async def run(self) -> list[str]:
        """Run all executions; return the bounds that were exceeded, in words."""
        await self._once_unmeasured()
        before = remains.Remains.now()
        async with THROUGH[self._options.through](self._options.tier) as run:
            workers = range(self._options.concurrency)
            await asyncio.gather(*(self._work(run) for _ in workers))
            await run("1")  # there must be a zygote, even if the last was just killed
            growth = remains.grown(self._first_memory, await self._memory())
        return self.tally.broken() + growth + await _left_behind(before)

    async def _once_unmeasured(self) -> None:
        """Start what lives as long as this process: the supervisor, threads, imports."""
        async with THROUGH[self._options.through]("bare") as run:
            await asyncio.gather(*(run("1") for _ in range(self._options.concurrency)))

    async def _work(self, run: Run) -> None:
        while self._left > 0:
            self._left -= 1
            started = time.perf_counter()
            end = await self._execute(run)
            self.tally.seconds.append(time.perf_counter() - started)
            self.tally.ends[end] += 1
            await self._after_each()

    async def _execute(self, run: Run) -> str:
        nonce = secrets.token_hex(16)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                result = await run(CODE.format(nonce=nonce))
        except (atoll.AtollError, TimeoutError) as exc:
            self.tally.errors[f"{type(exc).__name__}: {exc}"] += 1
            return "to be retried" if getattr(exc, "retryable", False) else "failed"
        if result.stdout == f"{nonce}\n":
            return "answered"
        self.tally.errors[f"{result.kind}: {result.error} {result.stdout[:100]!r}"] += 1
        return "crossed" if result.stdout else "failed"

    async def _after_each(self) -> None:
        done, every = self.tally.done, self._options.kill_every
        if done == max(1, int(self._options.executions * WARM_UP)):
            self._first_memory = await self._memory()
        if every and done % every == 0:
            self._kill_zygote()
        _show(self.tally, self._options.executions)

    def _kill_zygote(self) -> None:
        if pair := processes.zygote_host_and_zygote(supervisor.pid):
            os.kill(pair[1], signal.SIGKILL)
            self.tally.kills += 1

    async def _memory(self) -> dict[str, int]:
        """Return the memory as soon as there is a zygote: the last one may have been killed."""
        async with asyncio.timeout(ANSWER_SECONDS):
            while not all((held := remains.memory()).values()):  # noqa: ASYNC110 - the kernel's
                await asyncio.sleep(0.01)
        return held


async def _left_behind(before: remains.Remains) -> list[str]:
    """Return what there is more of than before, after some seconds for processes that end."""
    end = time.monotonic() + SETTLE_SECONDS
    while (left := remains.Remains.now().more_than(before)) and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return left


def main(arguments: list[str] | None = None) -> int:
    """Run the soak and print a summary; return 1 if a bound was exceeded."""
    options = _parser().parse_args(arguments)
    soak = Soak(options)
    started = time.perf_counter()
    broken = asyncio.run(soak.run())
    _summarise(soak.tally, time.perf_counter() - started, broken)
    return int(bool(broken))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description="Many fresh executions: none lost, none crossed, nothing left behind.",
    )
    parser.add_argument("--executions", type=int, default=10_000, metavar="N")
    parser.add_argument("--concurrency", type=int, default=32, metavar="N")
    parser.add_argument(
        "--kill-every", type=int, default=0, metavar="N", help="kill the zygote every N executions"
    )
    parser.add_argument("--tier", default="bare", help="what the zygote has imported")
    parser.add_argument("--through", choices=THROUGH, default="pool")
    return parser


def _show(tally: Tally, executions: int) -> None:
    """Show progress: a bar on a terminal, otherwise a line for each tenth."""
    share = tally.done / executions
    line = f"[{'#' * int(share * 40):40}] {tally.done:,}/{executions:,}, {tally.kills} kills"
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
    elif tally.done % max(1, executions // 10) == 0:
        print(line, file=sys.stderr, flush=True)


def _summarise(tally: Tally, seconds: float, broken: list[str]) -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)
    ends = ", ".join(f"{count:,} {end}" for end, count in tally.ends.most_common())
    print(f"{tally.done:,} executions in {seconds:.1f} s, {tally.kills} zygotes killed: {ends}")
    ordered = sorted(tally.seconds)
    marks = (f"p{share} {ordered[len(ordered) * share // 100] * 1e3:.1f} ms" for share in (50, 99))
    print(f"from wish to gone: {', '.join(marks)}")
    for error, count in tally.errors.most_common():
        print(f"  {count} x {error}")
    print("\n".join(f"BROKEN: {one}" for one in broken) or "every bound was kept")


if __name__ == "__main__":
    sys.exit(main())
