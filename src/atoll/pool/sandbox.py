"""A native sandbox whose guest comes out of a pool; started as usual where no zygote can serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.backends.native import NativePythonSandbox
from atoll.backends.native.launch import greet, limits_of
from atoll.policy import Isolation

if TYPE_CHECKING:
    from atoll.backends.native.launch import Launched
    from atoll.config import REPLConfig
    from atoll.pool.pool import Pool

SMALL_CONTEXT = 64 << 20
"""Up to here a context fits into what every guest may map anyway."""


class PooledSandbox(NativePythonSandbox):
    """Same behaviour, warm start."""

    def __init__(self, config: REPLConfig, pool: Pool, code: str | None = None) -> None:
        super().__init__(config)
        self._pool = pool
        self._tier = pool.tier(config, code)

    async def _launch(self) -> Launched:
        if self._level < Isolation.JAILED or not self._pool.suits(self._config):
            return await super()._launch()
        size = self._shared.size if self._shared else 0
        limits = limits_of(self.policy, size if size > SMALL_CONTEXT else 0)
        line = await self._pool.take(self._tier, limits)
        return await greet(line, self._config, self._context, self._shared, self.policy.env)
