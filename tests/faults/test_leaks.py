"""Nothing is left of a sandbox: counted before and after dozens of them, good and bad.

With `--matrix all` hundreds of them, which shows also what grows slowly.

Counted are processes, threads, mounts, control groups, descriptors, memory files, temporary
files and the supervisor's memory, of this process and of its supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import re
import tempfile
import threading
import time
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

import atoll
from atoll.jail.measure import cgroup, meter
from atoll.jail.supervisor.client import supervisor
from atoll.policy import Mount

FEW_SANDBOXES, MANY_SANDBOXES, AT_ONCE = 48, 200, 8
FAILED_STARTS, KILLED_CELLS, CANCELLED_OPENS = 30, 15, 10
CONTEXT = "c" * 100_000
SETTLE_SECONDS = 30
MOST_GROWTH = 1.25
"""Of the supervisor's memory; allocators keep a little."""
USE = """
import subprocess
open('left.txt', 'w').write('x' * 10_000)
open('/tmp/left.txt', 'w').write('x')
subprocess.Popen(['sleep', '300'])
subprocess.run(['true'])
len(context)
"""
STUBBORN = """
import subprocess
subprocess.Popen(['sleep', '300'])
sum(iter(int, 1))  # never comes to where a signal is looked at
"""


@dataclass(frozen=True)
class Census:
    """What there is at one moment, by what would leak."""

    processes: frozenset[int]
    threads: int
    """Without the event loop's own pool, which grows to its size and stays."""
    host_mounts: frozenset[str]
    supervisor_mounts: frozenset[str]
    groups: frozenset[str]
    descriptors: int
    supervisor_descriptors: int
    memory_files: int
    temporary_files: frozenset[str]

    def more_than(self, before: Census) -> dict[str, object]:
        """What there is now and was not before."""
        found: dict[str, object] = {}
        for one in fields(self):
            then, now = getattr(before, one.name), getattr(self, one.name)
            if isinstance(now, frozenset) and now - then:
                found[one.name] = sorted(map(str, now - then))
            elif isinstance(now, int) and now > then:
                found[one.name] = (then, now)
        return found


@pytest.fixture
async def errors_of_the_loop():
    """Whatever goes wrong in a callback, where no caller sees it."""
    seen: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: seen.append(repr(context)))
    yield seen
    loop.set_exception_handler(None)


@pytest.fixture
async def before(errors_of_the_loop):
    """The state to come back to: a sandbox has been here, so all that stays is there already."""
    await asyncio.gather(*(_use() for _ in range(AT_ONCE)))
    await _cancel_open(0.0)
    with contextlib.suppress(atoll.SandboxStartError):
        await _fail_to_start()
    return await _settled(None)


@pytest.mark.spec("R0.2")
@pytest.mark.timeout(300)
async def test_nothing_is_left_of_many_sandboxes(before, errors_of_the_loop, pytestconfig):
    whole = pytestconfig.getoption("matrix") == "all"
    pid, memory = supervisor.pid, meter._proportional(supervisor.pid)
    for _ in range((MANY_SANDBOXES if whole else FEW_SANDBOXES) // AT_ONCE):
        await asyncio.gather(*(_use() for _ in range(AT_ONCE)))
    assert (await _settled(before)).more_than(before) == {}
    assert supervisor.pid == pid
    assert meter._proportional(pid) < memory * MOST_GROWTH
    assert errors_of_the_loop == []


@pytest.mark.spec("R0.2")
@pytest.mark.timeout(120)
async def test_nothing_is_left_of_failed_starts(before, errors_of_the_loop):
    pid = supervisor.pid
    for _ in range(FAILED_STARTS // 5):
        tried = await asyncio.gather(*(_fail_to_start() for _ in range(5)), return_exceptions=True)
        assert {type(error) for error in tried} == {atoll.SandboxStartError}
        del tried  # the errors' frames hold the context
    assert (await _settled(before)).more_than(before) == {}
    assert (supervisor.pid, errors_of_the_loop) == (pid, [])


@pytest.mark.spec("R0.2")
@pytest.mark.timeout(120)
async def test_nothing_is_left_of_killed_cells(before, errors_of_the_loop):
    killed = 0
    async with atoll.aio.create_sandbox(context=CONTEXT) as box:
        while killed < KILLED_CELLS:  # on a busy host some are stopped before they come to it
            result = await box.execute(STUBBORN, timeout_ms=50)
            assert result.kind == "timeout"
            killed += result.state_lost
    assert (await _settled(before)).more_than(before) == {}
    assert errors_of_the_loop == []


@pytest.mark.spec("R0.2")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("at_once", [1, AT_ONCE])
async def test_nothing_is_left_of_cancelled_opens(before, errors_of_the_loop, at_once):
    pid = supervisor.pid
    moments = random.Random(7)  # a moment out of a start, which takes about as long
    for _ in range(CANCELLED_OPENS):
        await asyncio.gather(*(_cancel_open(moments.uniform(0, 0.06)) for _ in range(at_once)))
    assert (await _settled(before)).more_than(before) == {}
    assert (supervisor.pid, errors_of_the_loop) == (pid, [])


@pytest.mark.spec("R0.2")
@pytest.mark.timeout(120)
async def test_nothing_is_left_of_cancelled_cells_and_cpu_limits(before, errors_of_the_loop):
    policy = atoll.ExecutionPolicy(cpu_seconds=60 if cgroup.find() else None)
    async with atoll.aio.create_sandbox(policy=policy) as box:
        for _ in range(20):
            await box.execute("1")
        for _ in range(5):
            cell = asyncio.ensure_future(box.execute("while True: pass"))
            await asyncio.sleep(0.05)
            cell.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cell
    assert (await _settled(before)).more_than(before) == {}
    assert errors_of_the_loop == []


async def _use() -> None:
    async with atoll.aio.create_sandbox(context=CONTEXT) as box:
        assert (await box.execute(USE)).value == len(CONTEXT)


async def _fail_to_start() -> None:
    """The mount is found to be impossible when the jail is built: a link that leads nowhere."""
    link = Path(tempfile.gettempdir()) / "leads-nowhere"
    with contextlib.suppress(FileExistsError):
        link.symlink_to("/no/such/thing")
    mounts = (Mount(source=link, target="/data"),)
    await atoll.aio.create_sandbox(context=CONTEXT, policy=atoll.ExecutionPolicy(mounts=mounts))


async def _cancel_open(after_seconds: float) -> None:
    opening = asyncio.ensure_future(_open())
    await asyncio.sleep(after_seconds)
    opening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await opening).destroy()


async def _open() -> atoll.BaseSandbox:
    return await atoll.aio.create_sandbox(context=CONTEXT)


async def _settled(before: Census | None) -> Census:
    """The census when nothing more goes away; the kernel removes some things in its own time."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        gc.collect()
        now = _count()
        if time.monotonic() > end or (before is not None and not now.more_than(before)):
            return now
        await asyncio.sleep(0.2)
        if before is None and _count() == now:
            return now


def _count() -> Census:
    assert supervisor.pid is not None
    links = [_target(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return Census(
        processes=frozenset(meter.processes([os.getpid()]))
        | frozenset(_children_of(supervisor.pid)),
        threads=sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate()),
        host_mounts=_mounts("self"),
        supervisor_mounts=_mounts(str(supervisor.pid)),
        groups=_groups(),
        descriptors=len(links),
        supervisor_descriptors=len(os.listdir(f"/proc/{supervisor.pid}/fd")),
        memory_files=sum("memfd:" in link for link in links),
        temporary_files=_temporary_files(),
    )


def _children_of(parent: int) -> list[int]:
    """By every process's own word, zombies too."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            number, _, rest = stat.read_text().partition(" (")
            if int(rest.rpartition(")")[2].split()[1]) == parent:
                found.append(int(number))
    return found


def _mounts(pid: str) -> frozenset[str]:
    """Mounts by their numbers; nobody else's, on a busy host, have to do with us."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return frozenset(line for line in lines if re.search(r"atoll|/\.box|- tmpfs tmpfs", line))


def _groups() -> frozenset[str]:
    """Control groups in use, and empty ones beyond those that are kept: as many as are in use."""
    hierarchies = cgroup.find()
    parents = set(hierarchies.parents.values()) if hierarchies else set()
    pattern = f"{cgroup.PREFIX}{supervisor.pid}-*"
    found = {path for parent in parents for path in parent.glob(pattern)}
    used = {path.name for path in found if (path / "cgroup.procs").read_text()}
    kept = sorted({path.name for path in found} - used)[: len(used)]
    return frozenset(str(path) for path in found if path.name not in kept)


def _temporary_files() -> frozenset[str]:
    """Those that a sandbox makes; others, with names of their own, are made by other tests."""
    folders = {Path("/tmp"), Path(tempfile.gettempdir())}
    found = {path for folder in folders for path in folder.glob("*-atoll")}
    return frozenset(map(str, found | set(Path("/dev/shm").glob("*atoll*"))))


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
