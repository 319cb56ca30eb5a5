"""What is killed from outside: zygote, zygote host, supervisor, host. And nothing grows with use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from poolkit import parent, processes, said, until, zygote_hosts, zygotes

import atoll
from atoll.errors import SandboxLostError
from atoll.jail.measure import cgroup, meter
from atoll.jail.supervisor.client import supervisor
from atoll.launch.guest_handle import limits_of
from atoll.policy import ExecutionPolicy
from atoll.types import Outcome

LIMITS = limits_of(ExecutionPolicy(), 0)
ROUNDS = 100
KEEPS_STATUS = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    """Stands in for the check by the supervisor's number, which these tests change."""


async def test_sessions_outlive_their_zygote(family):
    box = await family.open()
    await said(box, "x = 1")
    await family.pool.park("bare", LIMITS)
    (zygote,) = zygotes()
    os.kill(zygote, signal.SIGKILL)
    assert await said(box, "print(x)") == "1"
    clone = await family.fork(box)
    assert await said(clone, "print(x)") == "1"
    parked = await family.open()  # one that the dead zygote has borne
    assert await said(parked, "print('parked')") == "parked"
    boxes = [await family.open() for _ in range(4)]
    assert [await said(one, "print('new')") for one in boxes] == ["new"] * 4
    assert zygotes() != [zygote]
    assert family.pool.stats()["bare"]["restarts"] == 1


async def test_a_clone_whose_origin_has_ended_outlives_the_retirement_of_its_zygote_host(family):
    origin, other = await family.open(), await family.open()
    await said(origin, "x = 1")
    clone = await family.fork(origin)
    await origin.destroy()
    (zygote_host,) = zygote_hosts()
    family.pool._zygote_client("bare").retire()
    await other.destroy()  # the last guest that the zygote host itself knows of
    assert await said(clone, "print(x)") == "1"
    await clone.destroy()
    await until(lambda: not Path(f"/proc/{zygote_host}/ns").exists())


async def test_how_a_guest_ends_is_told_after_its_zygote_is_gone(family):
    box, other = await family.open(), await family.open()
    os.kill(zygotes()[0], signal.SIGKILL)
    result = await box.execute("import os; os._exit(3)")
    # A kernel that keeps no status loses that of a guest that ends just when a jail is made.
    unknown = () if KEEPS_STATUS else ((Outcome.CRASHED, 1),)
    assert (result.kind, result.exit_code) in ((Outcome.EXITED, 3), *unknown)
    result = await other.execute("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (result.kind, result.exit_code) in ((Outcome.CRASHED, 139), *unknown)
    assert await said(box, "print('again')") == "again"


async def test_the_end_of_an_orphan_is_known_though_nobody_reports_it(family):
    box = await family.open()
    (zygote,), (zygote_host,) = zygotes(), zygote_hosts()
    orphans = meter.children(zygote)
    os.kill(zygote, signal.SIGKILL)
    await until(lambda: zygotes() not in ([], [zygote]))
    os.kill(zygote_host, signal.SIGSTOP)
    try:
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        await until(box._guest.lease.ended.done)
    finally:
        os.kill(zygote_host, signal.SIGCONT)


async def test_a_zygote_may_die_at_any_moment(family):
    """Sessions are opened all the while; none may be lost, as nobody's code has run in them."""
    await family.pool.warm("bare")
    moments = random.Random(5)
    stop = time.monotonic() + 4

    async def kill() -> int:
        killed = 0
        while time.monotonic() < stop:
            await asyncio.sleep(moments.uniform(1.7, 2.1))  # slower than what counts as haste
            for pid in zygotes():
                os.kill(pid, signal.SIGKILL)
                killed += 1
        return killed

    async def use() -> int:
        used = 0
        while time.monotonic() < stop:
            box = await family.open()
            assert await said(box, "print(7)") == "7"
            await box.destroy()
            used += 1
        return used

    killed, *used = await asyncio.gather(kill(), use(), use(), use())
    assert killed >= 2
    assert sum(used) > 10


async def test_a_zygote_that_cannot_live_costs_no_running_session(family):
    box = await family.open()
    await said(box, "x = 1")
    clone = await family.fork(box)
    (old,) = zygote_hosts()

    async def keep_killing() -> None:
        while True:
            for pid in zygotes():
                if parent(pid) == old:
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.02)

    killing = asyncio.ensure_future(keep_killing())
    while zygote_hosts() == [old]:  # a zygote that got warm before it was killed is no failure
        with contextlib.suppress(SandboxLostError):
            await family.open()
    killing.cancel()
    assert await said(await family.open(), "print('a new zygote host')") == "a new zygote host"
    assert [await said(one, "print(x)") for one in (box, clone)] == ["1", "1"]
    await family.close()
    for parked in family.pool._warm_pools.values():
        await parked.close()
    await until(lambda: old not in zygote_hosts())


async def test_a_zygote_host_takes_its_sessions_along(family):
    box = await family.open()
    clone = await family.fork(box)
    await said(box, "x = 1")
    os.kill(zygote_hosts()[0], signal.SIGKILL)
    await until(lambda: box._guest.session.dead and clone._guest.session.dead)
    for one in (box, clone):
        result = await one.execute("print('x' in globals())")
        assert (result.stdout, result.state_lost) == ("False\n", True)


async def test_a_cell_that_runs_when_the_zygote_host_ends_is_a_crash(family):
    box = await family.open()
    cell = asyncio.ensure_future(box.execute("import time; time.sleep(30)"))
    await asyncio.sleep(0.2)
    os.kill(zygote_hosts()[0], signal.SIGKILL)
    result = await asyncio.wait_for(cell, 60)
    assert (result.kind, result.state_lost) == (Outcome.CRASHED, True)


async def test_the_supervisor_takes_its_sessions_along_and_is_started_again(family):
    box = await family.open()
    clone = await family.fork(box)
    below = meter.processes([supervisor.pid])
    os.kill(supervisor.pid, signal.SIGKILL)
    await until(box._guest.lease.ended.done)
    with pytest.raises(atoll.SandboxError, match="the supervisor has gone"):
        box._guest.lease.ended.result()
    await until(lambda: not any(Path(f"/proc/{pid}/ns").exists() for pid in below[1:]))
    for one in (box, clone):
        result = await one.execute("print('again')")
        assert (result.stdout, result.state_lost) == ("again\n", True)
    assert await said(await family.open(), "print('new')") == "new"


HOST = """
    import asyncio, json, os
    from atoll.config import SandboxConfig
    from atoll.jail.measure import meter
    from atoll.jail.supervisor.client import supervisor
    from atoll.hosting.pool import Pool, PooledSandbox
    from atoll.launch.guest_handle import limits_of
    from atoll.policy import ExecutionPolicy

    async def main():
        async with Pool() as pool:
            await pool.park("bare", limits_of(ExecutionPolicy(), 0))
            box = PooledSandbox(SandboxConfig(preload="bare"), pool)
            await box.initialize()
            await box.execute("import subprocess; p = subprocess.Popen(['sleep', '300'])")
            twin = await box.fork()
            await twin.checkpoint()
            print(json.dumps([supervisor.pid, *meter.processes([supervisor.pid])]), flush=True)
            await box.execute("while True: pass")

    asyncio.run(main())
"""


async def test_nothing_is_left_of_a_host_that_was_killed():
    command = (sys.executable, "-c", textwrap.dedent(HOST))
    host = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    overseer, *pids = json.loads(await host.stdout.readline())
    assert len(pids) > 8
    host.kill()
    await host.wait()
    await until(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()])
    assert _groups(overseer) == []


def _groups(overseer: int) -> list[str]:
    found = cgroup.find()
    parents = set(found.parents.values()) if found else set()
    return [str(path) for parent in parents for path in parent.glob(f"atoll-{overseer}-*")]


@pytest.mark.long
@pytest.mark.spec("R2.10")
@pytest.mark.timeout(180)
async def test_nothing_grows_with_use(family):
    await family.pool.park("bare", LIMITS)
    await _use(family, 20)
    before = await _settled(family)
    await _use(family, ROUNDS)
    assert await _growth(family, before) == {}


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_nothing_grows_with_clones(family):
    box = await family.open()
    await family.pool.park("bare", LIMITS)
    await _clone(box, 10)
    before = await _settled(family)
    await _clone(box, 60)
    assert await _growth(family, before) == {}


async def _use(family, rounds: int) -> None:
    for number in range(rounds):
        box = await family.open()
        await said(
            box,
            "open('x', 'w').write('x' * 1000); import subprocess; subprocess.Popen(['sleep', '99'])",
        )
        if number % 5 == 0:
            await box.execute("import os; os._exit(1)")
        await box.destroy()


async def _clone(box, rounds: int) -> None:
    for number in range(rounds):
        twin = await box.fork()
        await said(twin, "import subprocess; subprocess.Popen(['sleep', '99'])")
        if number % 5 == 0:
            await twin.execute("import os; os.kill(os.getpid(), 9)")
        await twin.destroy()


async def _growth(family, before: dict[str, float]) -> dict[str, tuple[float, float]]:
    """What there is more of; the kernel lets go of some things in its own time."""
    for _ in range(10):
        now = await _settled(family)
        more = {
            what: (then, now[what])
            for what, then in before.items()
            if now[what] > then * (1.2 if "memory" in what else 1)
        }
        if not more:
            break
    return more


async def _settled(family) -> dict[str, float]:
    """What there is when all that was asked for is there, and all that was ended is gone."""
    for warm_pool in family.pool._warm_pools.values():
        await warm_pool.filled()
        while warm_pool.parked > family.pool.settings.parked:
            await warm_pool._parked.pop().close()
    await asyncio.sleep(0.5)
    (zygote_host,), (zygote,) = zygote_hosts(), zygotes()
    groups, found = len(_groups(supervisor.pid)), cgroup.find()
    folders = len(set(found.parents.values())) if found else 0
    counts: dict[str, float] = {
        "processes": len(processes()),
        "groups": max(groups, 2 * folders * family.pool.settings.parked),  # as many may be kept
        "host descriptors": len(os.listdir("/proc/self/fd")),
    }
    for name, pid in (
        ("supervisor", supervisor.pid),
        ("zygote_host", zygote_host),
        ("zygote", zygote),
    ):
        counts[f"{name} descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
        counts[f"{name} memory"] = meter._statm(pid, 1)
        counts[f"{name} mounts"] = _mounts(pid)
    counts["supervisor descriptors"] -= groups  # it has the entrance of each open
    return counts


def _mounts(pid: int) -> int:
    return len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
