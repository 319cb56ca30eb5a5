"""The pool that rows about warm starts share, as a zygote takes seconds to warm: one a run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from typing import TYPE_CHECKING, TypeVar

from atoll.config import SandboxConfig
from atoll.hosting.pool import Pool, PooledSandbox
from atoll.launch.guest_handle import limits_of
from bench.rows import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from bench.rows import Probe

T = TypeVar("T")
HI = "print('hi')"


class Warm:
    """A pool in an event loop that runs while somebody waits for it."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.pool = self.run(_open_pool())

    def run(self, work: Coroutine[None, None, T]) -> T:
        """Wait for `work`."""
        return self.runner.run(work)

    def config(self, tier: str) -> SandboxConfig:
        """A configuration for this tier; UnavailableError if its libraries are not installed."""
        self.run(self.pool.warm(tier))
        if missing := self.pool.stats()[tier]["missing"]:
            raise UnavailableError(f"not installed: pip install '.[data]' ({missing})"[:80])
        config = SandboxConfig(preload=tier)
        self.run(self.park(config))
        return config

    async def park(self, config: SandboxConfig) -> None:
        """Have guests of this kind wait, and nothing on its way."""
        assert config.preload is not None
        await self.pool.park(config.preload, limits_of(config.policy, 0))

    async def open(self, config: SandboxConfig) -> PooledSandbox:
        """A sandbox whose guest was waiting, if one was."""
        box = PooledSandbox(config, self.pool)
        await box.initialize()
        return box

    @contextlib.contextmanager
    def session(self, config: SandboxConfig) -> Iterator[PooledSandbox]:
        """A sandbox that is destroyed after the block."""
        box = self.run(self.open(config))
        try:
            yield box
        finally:
            self.run(box.destroy())

    def fresh(self, config: SandboxConfig, code: str = HI) -> Probe:
        """A probe: seconds from the wish for a sandbox to the code's answer, in a parked guest.

        What comes after is off the clock: the end of the sandbox, and another guest to wait.
        """

        async def once() -> float:
            started = time.perf_counter()
            box = await self.open(config)
            result = await box.execute(code)
            took = time.perf_counter() - started
            assert result.success, result
            await box.destroy()
            await self.park(config)
            return took

        return lambda: self.run(once())

    def close(self) -> None:
        """End the pool, and the loop."""
        self.run(self.pool.close())
        self.runner.close()


@functools.cache
def shared() -> Warm:
    """The pool of this run."""
    return Warm()


def close() -> None:
    """End the pool, if there is one."""
    if shared.cache_info().currsize:
        shared().close()
        shared.cache_clear()


async def _open_pool() -> Pool:
    return Pool()
