"""Opens sandboxes that can be forked, in this process: for `atoll mcp` and the Jupyter kernel."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

from atoll.factory import open_sandbox
from atoll.policy import Isolation

if TYPE_CHECKING:
    from atoll.config import OutputCallback, SandboxConfig
    from atoll.hosting.pool import Pool
    from atoll.sandbox.base import BaseSandbox


class Opener:
    """Opens sandboxes of one configuration, from its own pool if the backend allows it.

    `auto` means a jailed process here, and nothing weaker. A named backend is used as it is.
    """

    def __init__(self, config: SandboxConfig) -> None:
        level = config.min_isolation
        pooled = config.backend in ("auto", "native") and (
            level is None or level <= Isolation.JAILED
        )
        if config.backend == "auto" and level is None:
            config = dataclasses.replace(config, min_isolation=Isolation.JAILED)
        self.config = config
        self._pool = _pool(config.python) if pooled and sys.platform == "linux" else None

    async def open(self, on_output: OutputCallback | None = None) -> BaseSandbox:
        """Return a started sandbox; `on_output` is called with its output while code runs."""
        config = dataclasses.replace(self.config, on_output=on_output)
        if self._pool is not None and self._pool.usable:
            return await self._pool.open(config)
        return await open_sandbox(config)

    async def fork(self, box: BaseSandbox, on_output: OutputCallback | None = None) -> BaseSandbox:
        """Return a live clone with its own callback; UnsupportedError if it cannot be forked.

        Without the pool a clone keeps the callback of its parent.
        """
        fork_with = getattr(box, "fork_with", None)
        if fork_with is None:
            return await box.fork()
        twin: BaseSandbox = await fork_with(dataclasses.replace(self.config, on_output=on_output))
        return twin

    async def close(self) -> None:
        """End the pool's processes."""
        if self._pool is not None:
            await self._pool.close()


def _pool(python: str | None) -> Pool:
    from atoll.hosting.pool import Pool, PoolSettings  # noqa: PLC0415 - only Linux can import it

    return Pool(PoolSettings(python=python))
