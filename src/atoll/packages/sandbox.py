"""The common part of sandboxes with packages by name: a hold on their environment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from atoll.launch.sandbox import GuestSandbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.config import SandboxConfig
    from atoll.packages.store import Environment, Hold
    from atoll.packages.target import Target


class PackagedSandbox(GuestSandbox):
    """A sandbox that finds the environment of its packages, or builds it in a thread."""

    _packages: Hold | None = None

    async def _have_packages(
        self, config: SandboxConfig, make_target: Callable[[], Target]
    ) -> Environment | None:
        """Return the environment of the configuration's packages, if it has any."""
        if self._packages is None and config.packages:
            from atoll.packages.environment import ensure, find  # noqa: PLC0415 - most have none

            asks = config.python is not None  # no thread for the default: it slows a warm start
            target = await asyncio.to_thread(make_target) if asks else make_target()
            self._packages = find(config.packages, target) or await asyncio.to_thread(
                ensure, config.packages, target, allow_source=config.allow_source
            )
        return None if self._packages is None else self._packages.environment

    async def _release_all(self) -> None:
        """End the guest; then release the environment, which it has used until now."""
        try:
            await super()._release_all()
        finally:
            if self._packages is not None:
                self._packages.close()
                self._packages = None
