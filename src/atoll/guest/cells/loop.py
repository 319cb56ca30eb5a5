"""asyncio where there are neither sockets nor threads: a loop that only knows time.

Written for CPython 3.14, which is what runs there.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio import events, runners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

FOREVER = 3600.0


class Nap:
    """In place of a selector: nothing but time ever comes."""

    def select(self, timeout: float | None) -> list[Any]:
        """Let the time pass."""
        time.sleep(FOREVER if timeout is None else max(0.0, timeout))
        return []

    def close(self) -> None:
        """There is nothing to close."""


class TimeLoop(asyncio.BaseEventLoop):
    """Tasks, timers, futures."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = Nap()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Run the call at once: there are no threads."""
        del executor
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:
            future.set_exception(exc)
        return future

    def _process_events(self, _events: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """No other thread could have woken it."""


def install() -> None:
    """Have asyncio.run and its like use it."""
    base: Any = vars(events)["_BaseDefaultEventLoopPolicy"]
    policy = type("TimePolicy", (base,), {"_loop_factory": TimeLoop})
    vars(events)["_set_event_loop_policy"](policy())
    vars(events)["_set_running_loop"](None)
    sys.set_asyncgen_hooks(None, None)
    asyncio.run = runners.run  # Pyodide has put another there
