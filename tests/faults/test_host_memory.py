"""The host runs out of memory: the kernel ends the guests that took it, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.jail.measure import cgroup

MEMORY = 256 << 20
"""What the host has: less than three of its guests take, though each stays below its limit."""
HOST = """
import asyncio, json, os, sys
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))

from atoll import ExecutionPolicy, SandboxConfig
from atoll.hosting.pool import Pool

TAKE = "import time\\ntaken = bytearray(b'x' * (110 << 20))\\ntime.sleep(0.5)"


async def main():
    async with Pool() as pool:
        limit = None if sys.argv[2] == "unlimited" else 200 << 20
        config = SandboxConfig(preload="bare", policy=ExecutionPolicy(memory_bytes=limit))
        ballast = b"x" * (60 << 20)  # so that the host is larger than a guest at rest
        quiet, *others = [await pool.open(config) for _ in range(4)]
        await quiet.execute("kept = 1")
        ends = await asyncio.gather(*(one.execute(TAKE) for one in others))
        value = (await quiet.execute("kept")).value
        new = await pool.open(config)
        answers = [[one.kind, one.error, one.state_lost] for one in ends]
        last = (await new.execute("6 * 7")).value
        print(json.dumps({"ends": answers, "kept": value, "new": last}))


asyncio.run(main())
"""


@pytest.fixture
def entrance() -> Iterator[Path]:
    """The file by which a process enters a control group with little memory."""
    found = cgroup.find()
    if found is None or found.version == 2:  # where a group with processes can have none below it
        pytest.skip("no control groups of version 1 here that we could make")
    folder = found.parents["memory"] / f"small-host-{os.getpid()}"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(str(MEMORY))
    yield folder / "cgroup.procs"
    folder.rmdir()


@pytest.mark.parametrize("limit", ["limited", "unlimited"])
def test_guests_that_take_it_end_and_nobody_else(entrance: Path, limit: str):
    run = [sys.executable, "-W", "ignore", "-c", HOST, str(entrance), limit]
    host = subprocess.run(run, capture_output=True, text=True, check=False)
    assert host.returncode == 0, host.stderr
    said = json.loads(host.stdout)
    reason = "MemoryError: the host ran out of memory, and the kernel ended the sandbox"
    ended = [end for end in said["ends"] if end != ["ok", None, False]]
    assert ended, "the host had memory for all of them"
    assert all(end == ["memory", reason, True] for end in ended)
    assert (said["kept"], said["new"]) == (1, 42)
