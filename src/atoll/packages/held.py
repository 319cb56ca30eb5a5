"""A sandbox's hold on the environment of its packages by name."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.config import SandboxConfig
    from atoll.packages.store import Environment, Hold
    from atoll.packages.target import Target


@dataclass(slots=True)
class HeldPackages:
    """The environment of a configuration's packages, found or built, until it is closed."""

    hold: Hold | None = None

    async def find(
        self, config: SandboxConfig, make_target: Callable[[], Target]
    ) -> Environment | None:
        """Return the environment of the configuration's packages, if it has any."""
        if self.hold is None and config.packages:
            from atoll.packages.environment import ensure, find  # noqa: PLC0415 - most have none

            asks = config.python is not None  # no thread for the default: it slows a warm start
            target = await asyncio.to_thread(make_target) if asks else make_target()
            self.hold = find(config.packages, target) or await asyncio.to_thread(
                ensure, config.packages, target, allow_source=config.allow_source
            )
        return None if self.hold is None else self.hold.environment

    def again(self) -> HeldPackages:
        """Return another hold on the same environment."""
        return HeldPackages(None if self.hold is None else self.hold.again())

    def close(self) -> None:
        """Let the environment go."""
        if self.hold is not None:
            self.hold.close()
            self.hold = None
