"""Sessions that no node has for a long time: they are ended, and later deleted from the store.

A node that has a session writes to its log at least now and then (`DurableSession.renew`), so a log
without a new entry is that of a session whose driver and node were lost. Time is the store's own:
a machine with a wrong clock neither ends sessions early nor has its own ended.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from atoll.errors import AtollError
from atoll.fleet.log import FencedError, SessionLog

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from atoll.concurrency.background import Background
    from atoll.fleet.store import Store

    Sweep = Callable[[float], Awaitable[int]]

SWEEP_SECONDS = 3600.0
_LOG = logging.getLogger("atoll.fleet")


def watch(
    background: Background, store: Store, keep_seconds: float, marks: str, work: Sweep
) -> asyncio.Task[None]:
    """Look for expired sessions about once an hour; one process at a time does."""
    period = min(SWEEP_SECONDS, keep_seconds / 8)

    async def look() -> None:
        now = await take_turn(store, period, marks)
        if now is not None:
            await work(now - keep_seconds)

    return background.watch("expired sessions", lambda: period, look)


async def take_turn(store: Store, period: float, marks: str) -> float | None:
    """Return the time by the store's clock; None if another process has looked in this period."""
    mark = f"{marks}/{int(time.time() // period)}"
    if not await store.create(mark, b"a process looks for expired sessions"):
        return None
    result = await store.times(marks)
    await store.delete(*(name for name in result if name != mark))
    return result.get(mark)


async def sweep(store: Store, before: float) -> int:
    """End sessions whose objects were all written before; delete those that had ended by then.

    Return how many there were. Leases that are claimed or renewed meanwhile are left alone.
    """
    sessions = listed_by(await store.times("sessions"), 1)
    expired = [ident for ident, times in sessions.items() if max(times.values()) < before]
    done = 0
    for ident in expired:
        try:
            await SessionLog(store, ident).expire(sessions[ident])
            done += 1
        except FencedError as exc:
            _LOG.info("a session that was to expire has an owner: %s", exc)
        except AtollError as exc:
            _LOG.warning("an expired session stays in the store: %s", exc)
    return done


def listed_by(times: dict[str, float], part: int) -> dict[str, dict[str, float]]:
    """Return objects by one part of their names."""
    result: dict[str, dict[str, float]] = defaultdict(dict)
    for name, written in times.items():
        result[name.split("/")[part]][name] = written
    return result
