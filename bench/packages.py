"""Rows about packages by name: a warm start with an environment against one without."""

from __future__ import annotations

import os
import tempfile
import time
import zipfile
from typing import TYPE_CHECKING
from unittest import mock

from atoll.config import SandboxConfig
from atoll.launch.guest_handle import limits_of
from atoll.packages.environment import ensure
from atoll.packages.target import for_interpreter
from bench import warm
from bench.rows import Arms, Goal, row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.packages.store import Hold
    from bench.rows import Probe, Scale

NAME = "atoll_bench_package"
GOAL = Goal(ratio=1.1)
FACTS = {
    f"{NAME}/__init__.py": "table = {n: str(n) for n in range(10_000)}\n",
    f"{NAME}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
    f"{NAME}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{NAME}-1.0.dist-info/RECORD": "",
}


@row(
    what="fresh, parked, packages=[...]: print('hi')",
    against="the same without packages",
    rounds=50,
    goal=GOAL,
)
def packages_start(_scale: Scale) -> Iterator[Arms]:
    yield from _arms("bare")


@row(
    what="fresh, parked, packages=[...] imported: print('hi')",
    against="the same without packages",
    rounds=50,
    goal=GOAL,
)
def packages_warm(_scale: Scale) -> Iterator[Arms]:
    yield from _arms("packages")


def _arms(preload: str) -> Iterator[Arms]:
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": folder, "ATOLL_CACHE": folder}
        with mock.patch.dict(os.environ, settings):
            hold = _environment(folder)
            config = SandboxConfig(packages=[NAME], preload=preload)
            pool = warm.shared()
            yield Arms(ours=_fresh(config, hold), theirs=pool.fresh(pool.config("bare")))
            hold.close()


def _environment(folder: str) -> Hold:
    with zipfile.ZipFile(f"{folder}/{NAME}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in FACTS.items():
            wheel.writestr(path, text)
    return ensure([NAME], for_interpreter(warm.shared().pool.python))


def _fresh(config: SandboxConfig, hold: Hold) -> Probe:
    """Return a probe like that of the plain tier: the next guest is parked unmeasured."""
    shared = warm.shared()
    assert config.preload is not None

    async def park() -> None:
        assert config.preload is not None
        own = shared.pool.with_packages(hold)
        await own.park(config.preload, limits_of(config.policy, 0))

    async def once() -> float:
        started = time.perf_counter()
        box = await shared.open(config)
        result = await box.execute(warm.HI)
        took = time.perf_counter() - started
        assert result.success, result
        await box.destroy()
        await park()
        return took

    shared.run(park())
    return lambda: shared.run(once())
