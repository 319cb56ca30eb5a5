"""Warm starts: zygotes, parked guests, tiers, preloaded names."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from poolkit import Family, said, until, zygote_hosts

from atoll.config import SandboxConfig
from atoll.errors import ConfigError
from atoll.hosting.pool import Pool, PooledSandbox, PoolSettings
from atoll.jail.measure import meter
from atoll.jail.supervisor.client import supervisor
from atoll.launch.guest_handle import limits_of
from atoll.policy import ExecutionPolicy

LIMITS = limits_of(ExecutionPolicy(), 0)


async def test_warming_imports_before_the_first_request(pool):
    assert pool.stats() == {}
    await pool.warm("bare")
    assert pool.stats()["bare"]["missing"] == []
    assert pool.stats()["bare"]["warm_seconds"] > 0


@pytest.mark.spec("R2.10")
async def test_parked_guests_are_used_and_replaced(pool):
    await pool.park("bare", LIMITS)
    (warm_pool,) = pool._warm_pools.values()
    parked = list(warm_pool._parked)
    assert len(parked) == pool.settings.parked
    line = await pool.take("bare", LIMITS)
    assert line is parked[0]
    await until(lambda: warm_pool.parked == pool.settings.parked)
    assert line not in warm_pool._parked
    await line.close()


@pytest.mark.spec("R2.10")
async def test_a_session_gets_a_parked_guest(family):
    await family.pool.park("bare", LIMITS)
    (warm_pool,) = family.pool._warm_pools.values()
    waiting = list(warm_pool._parked)
    box = await family.open()
    assert box._guest.lease in [line.lease for line in waiting]


async def test_what_is_asked_for_often_is_parked(family):
    for _ in range(3):
        await (await family.open()).destroy()
    await until(lambda: family.pool.stats()["bare"]["parked"] == family.pool.settings.parked)


@pytest.mark.spec("R2.10")
async def test_every_sandbox_is_a_fresh_one(family):
    await family.pool.park("bare", LIMITS)
    seen = set()
    for _ in range(6):
        box = await family.open()
        assert not (await box.execute("mine")).success
        await said(box, "mine = 1; open('/app/mine', 'w').close()")
        seen.add(id(box._guest.lease))
        await box.destroy()


async def test_a_parked_guest_that_died_is_passed_over(pool):
    await pool.park("bare", LIMITS)
    (warm_pool,) = pool._warm_pools.values()
    dead = list(warm_pool._parked)
    for line in dead:
        line.lease.kill()
    await until(lambda: all(line.lease.ended.done() for line in dead))
    box = PooledSandbox(SandboxConfig(preload="bare"), pool)
    await box.initialize()
    assert await said(box, "print('alive')") == "alive"
    await box.destroy()


async def test_many_taken_at_once_are_parked_for(pool):
    await pool.park("bare", LIMITS)
    (warm_pool,) = pool._warm_pools.values()
    takes = [asyncio.ensure_future(pool.take("bare", LIMITS)) for _ in range(20)]
    await asyncio.sleep(0)  # each has started: on a busy machine they end one by one, too late
    assert warm_pool._target() > pool.settings.parked
    lines = await asyncio.gather(*takes)
    await warm_pool.filled()
    assert warm_pool.parked <= pool.settings.most_parked
    for line in lines:
        await line.close()


async def test_an_unknown_tier_is_refused_at_once(pool):
    with pytest.raises(ConfigError, match=r"no tier 'huge'.*bare, numeric, full"):
        PooledSandbox(SandboxConfig(preload="huge"), pool)


def test_settings_take_nothing_but_import_statements():
    with pytest.raises(ConfigError, match="not an import statement"):
        PoolSettings(tiers={"x": ("__import__('os').system('true')",)})
    with pytest.raises(ConfigError, match="at least one tier"):
        PoolSettings(tiers={})


@pytest.mark.spec("R2.4")
async def test_a_missing_library_is_a_warning():
    lines = ("import no_such_lib as q", "import json", "from email import nothing_there")
    async with Pool(PoolSettings(tiers={"x": lines})) as pool:
        box = PooledSandbox(SandboxConfig(), pool)
        await box.initialize()
        assert await said(box, "print(json.dumps([1]))") == "[1]"
        missing = pool.stats()["x"]["missing"]
        assert [text.split(":")[0] for text in missing] == ["no_such_lib", "email.nothing_there"]
        result = await box.execute("q")
        assert result.error_type == "NameError"
        await box.destroy()


@pytest.mark.spec("R2.4")
async def test_preloaded_names_need_no_import(family):
    pytest.importorskip("pandas")
    box = await family.open(preload="numeric")
    assert await said(box, "print(np.arange(3).sum(), pd.Series([1, 2]).mean())") == "3 1.5"
    assert await said(box, "import numpy; print(numpy is np, 'np' in globals())") == "True True"
    assert await said(box, "np = 5; print(np)") == "5"


@pytest.mark.spec("R2.4")
async def test_garbage_is_collected_in_a_guest_though_not_while_its_zygote_imports(family):
    box = await family.open(preload="bare")
    assert await said(box, "import gc; print(gc.isenabled(), gc.get_freeze_count() > 1000)") == (
        "True True"
    )


async def test_the_code_chooses_the_tier(pool):
    config = SandboxConfig()
    assert pool.tier(config, "print(1)") == "bare"
    assert pool.tier(config, "np.zeros(3)") == "numeric"
    assert pool.tier(config, "import seaborn") == "full"
    assert pool.tier(config) == "full"  # a session, whose code nobody knows
    assert pool.tier(SandboxConfig(preload="bare"), "np.zeros(3)") == "bare"


async def test_a_larger_tier_that_is_warm_will_do_for_code_that_is_known():
    lines = ("import json",)
    tiers = {"small": lines, "large": lines}
    async with Pool(PoolSettings(tiers=tiers)) as pool:
        assert pool.tier(SandboxConfig(), "print(1)") == "small"
        await pool.warm("large")
        assert pool.tier(SandboxConfig(), "print(1)") == "large"
        await pool.warm("small")
        assert pool.tier(SandboxConfig(), "print(1)") == "small"


async def test_a_library_outside_the_tier_can_still_be_imported(family):
    pytest.importorskip("numpy")
    box = await family.open(preload="bare")
    assert await said(box, "import numpy; print(numpy.ones(2).sum())") == "2.0"


async def test_environment_and_context_reach_a_parked_guest(family):
    await family.pool.park("bare", LIMITS)
    box = await family.open(context="some text", env={"NAME": "value"})
    assert await said(box, "import os; print(context, os.environ['NAME'])") == "some text value"


async def test_a_session_that_no_zygote_can_serve_is_started_as_usual(family, tmp_path):
    box = await family.open(workspace=tmp_path)
    await said(box, "open('made.txt', 'w').write('x')")
    assert (tmp_path / "made.txt").read_text() == "x"
    assert family.pool.stats() == {}


async def test_closing_ends_every_guest_and_zygote():
    async with Pool() as pool:
        await pool.park("bare", LIMITS)
        box = await Family(pool).open()
        assert await said(box, "print(1)") == "1"
    await until(lambda: not zygote_hosts())
    result = await box.execute("1")  # a pool that is closed may be used again: a new zygote
    assert result.state_lost
    await box.destroy()
    await pool.close()


async def test_a_pool_lives_through_a_signal_meant_for_the_terminal(family):
    box = await family.open()
    for pid in zygote_hosts():
        os.kill(pid, signal.SIGINT)
    assert await said(box, "print(1)") == "1"
    assert await said(await family.open(), "print(2)") == "2"


@pytest.mark.spec("R2.14")
async def test_a_fresh_execution_takes_less_than_a_plain_interpreter(family):
    """Each in a sandbox of its own, one after the other: less CPU time than `python -c pass`.

    Counted is all that is done for a sandbox: in this process, its supervisor, zygote and guest.
    """
    await family.pool.park("bare", LIMITS)
    ours, theirs = [], []
    for _ in range(15):
        before = _cpu_seconds()
        box = await family.open(preload="bare")
        assert await said(box, "print('hi')") == "hi"
        ours.append(_cpu_seconds() - before)
        await box.destroy()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "pass"], check=True)  # noqa: ASYNC221 - measured
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        theirs.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(ours) < min(theirs)


def _cpu_seconds() -> float:
    """CPU time of this process, and of the supervisor and all below it that live."""
    nanoseconds = 0
    for pid in meter.processes([supervisor.pid]):
        with contextlib.suppress(OSError):
            nanoseconds += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return time.process_time() + nanoseconds / 1e9
