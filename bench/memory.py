"""Rows about memory: a context is held once for all sandboxes, and a live session is small."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import atoll
from atoll.jail.supervisor.client import supervisor
from bench import kernel, warm
from bench.context import text_bytes
from bench.processes import descendants, memory_of
from bench.rows import Arms, Goal, row
from bench.start import running_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.config import SandboxConfig
    from bench.rows import Scale

SANDBOXES = 2
HELD_ONCE = Goal(ratio=1.05)
BLOCK = 512
LIVE = 50
IMPORTS = {"bare": "x = 1", "full": "import numpy, pandas; x = pandas.DataFrame({'a': [1]})"}
SMALL_DAEMON = Goal(value=50e6, ratio=1.0)


@row(
    what=f"memory of {SANDBOXES} sandboxes that have read one {{size}} context",
    against="the size of the context",
    rounds=3,
    unit="bytes",
    goal=HELD_ONCE,
)
def memory_shared(scale: Scale) -> Iterator[Arms]:
    with contextlib.closing(atoll.Context.from_text(text_bytes(scale).decode())) as context:
        yield Arms(
            ours=lambda: _held(context),
            minus=lambda: _held(None),
            theirs=lambda: float(scale.context_bytes),
        )


@row(
    what="memory of an idle daemon without data libraries, four sandboxes ready",
    against="an idle Jupyter kernel",
    rounds=2,
    unit="bytes",
    goal=SMALL_DAEMON,
)
def memory_idle_daemon(_scale: Scale) -> Iterator[Arms]:
    ours, before = os.getpid(), descendants(os.getpid())
    with kernel.blocking() as run:
        run("1")
        kernels = descendants(ours) - before
        with running_daemon("--tier", "bare"):
            daemon = _daemon_pid()
            yield Arms(
                ours=lambda: float(memory_of({daemon, *descendants(daemon)})),
                theirs=lambda: float(memory_of(kernels)),
            )


def _session_arms(tier: str, _scale: Scale) -> Iterator[Arms]:
    ours, before, pool = os.getpid(), descendants(os.getpid()), warm.shared()
    with kernel.blocking() as run:
        run(IMPORTS[tier])
        kernels = descendants(ours) - before
        yield Arms(
            ours=lambda: pool.run(_each_session(pool, pool.config(tier), IMPORTS[tier])),
            theirs=lambda: float(memory_of(kernels)),
        )


async def _each_session(pool: warm.Warm, config: SandboxConfig, code: str) -> float:
    """Return the bytes that each of some live sessions adds to what the pool holds anyway."""
    await pool.park(config)
    before = memory_of(descendants(supervisor.pid))
    boxes = [await pool.open(config) for _ in range(LIVE)]
    try:
        for box in boxes:
            assert (await box.execute(code)).success
        return (memory_of(descendants(supervisor.pid)) - before) / LIVE
    finally:
        for box in boxes:
            await box.destroy()


for _tier in ("bare", "full"):
    row(
        name=f"memory-session-{_tier}",
        what=f"memory of a live session, {_tier}, one of {LIVE}",
        against="an idle Jupyter kernel with the same imports",
        rounds=3,
        unit="bytes",
    )(functools.partial(_session_arms, _tier))


def _daemon_pid() -> int:
    command = [sys.executable, "-m", "atoll.cli.main", "daemon", "status", "--json"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(json.loads(said)["pid"])


def _held(context: atoll.Context | None) -> float:
    """Bytes held for sandboxes on one context: the memory file, and what they have besides.

    The file's own pages are counted once, by the file system. A copy that a sandbox made would
    show in its private memory, or (in shared memory of its own) in the sum of its Pss_Shmem.
    """
    before = descendants(supervisor.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(SANDBOXES):
            box = atoll.create_sandbox(backend="native", context=context)
            stack.enter_context(box)
            assert box.execute("(context or '').count('x')").success
        file = os.fstat(context.fd).st_blocks * BLOCK if context else 0
        rollups = [_rollup(pid) for pid in descendants(supervisor.pid) - before]
    shared = sum(one["Pss_Shmem"] for one in rollups)
    return max(file, shared) + sum(one["Pss"] for one in rollups) - shared


def _rollup(pid: int) -> dict[str, int]:
    """Return the fields of a process's smaps_rollup, in bytes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except ProcessLookupError:
        return {"Pss": 0, "Pss_Shmem": 0}  # a zombie
    except PermissionError:
        return {"Pss": 0, "Pss_Shmem": 0}  # a jail's init: not readable, no context
    fields = (line.split(":") for line in lines)
    return {name: int(rest.split()[0]) * 1024 for name, rest in fields}
