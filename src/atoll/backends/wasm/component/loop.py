"""asyncio in a component: there are no sockets to wait for, so a loop only has time to pass."""

from __future__ import annotations

import asyncio
import time
from typing import Any


class TimeSelector:
    """Waits for nothing but the next timer."""

    def select(self, timeout: float | None = None) -> list[Any]:
        """Let the time pass."""
        if timeout is None:
            raise RuntimeError("nothing is scheduled, and nothing can come from outside")
        if timeout > 0:
            time.sleep(timeout)
        return []


class TimeLoop(asyncio.BaseEventLoop):
    """Runs tasks and timers."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = TimeSelector()

    def _process_events(self, _events: list[Any]) -> None:
        """None come."""

    def _write_to_self(self) -> None:
        """Nobody else could wake us."""


def install() -> None:
    """Have asyncio.run and its like use it."""
    asyncio.SelectorEventLoop = TimeLoop  # type: ignore[assignment]
    policy: Any = asyncio.events._get_event_loop_policy()  # type: ignore[attr-defined] # noqa: SLF001
    type(policy)._loop_factory = TimeLoop  # noqa: SLF001
