"""Ask one arm one task within the limits that all arms share, and measure what it takes."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.errors import AtollError
from evals.arms import ARMS, UNANSWERED, Said, Spent

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from evals.arms import Setup
    from evals.benchmarks import AnyTask

GRACE_SECONDS = 30.0
"""Arms end themselves at the limit of time; one that does not is cancelled after this."""
POLL_SECONDS = 1.0
MOST_QUIET_POLLS = 60
IDLE_SHARE = 0.02
"""Of a poll: a server that uses less CPU time has noticed that its client is gone."""


class StoppedError(Exception):
    """A task was stopped at a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One answer and what it took."""

    said: str
    ended: str
    tokens: int = 0
    calls: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of the model's server: it does not depend on what else the machine does."""
    stopped: bool = False
    """Whether it is unanswered because a limit of time was reached."""
    reason: str = ""


def ask(arm: str, task: AnyTask, setup: Setup) -> Result:
    """Return an arm's answer; a task that is stopped or fails is not answered, and says why."""
    return asyncio.run(_ask(arm, task, setup))


async def _ask(arm: str, task: AnyTask, setup: Setup) -> Result:
    begun, used, spent = time.monotonic(), cpu_time(setup.server), Spent()
    stopped = False
    try:
        said = await _within_limits(ARMS[arm](task, setup, spent), setup)
    except StoppedError as exc:
        said, stopped = Said("", UNANSWERED, f"{exc}"), True
    except AtollError as exc:
        said = Said("", UNANSWERED, f"{exc}"[:200])
    result = Result(
        said=said.text,
        ended=said.ended,
        reason=said.reason,
        stopped=stopped,
        tokens=spent.tokens,
        calls=spent.calls,
        seconds=time.monotonic() - begun,
        cpu_seconds=cpu_time(setup.server) - used,
    )
    if stopped:
        await _until_idle(setup.server)
    return result


async def _within_limits(work: Awaitable[Said], setup: Setup) -> Said:
    """Return what an arm says; cancel it and raise StoppedError when a limit is reached."""
    end = time.monotonic() + setup.seconds + GRACE_SECONDS
    most = float("inf") if setup.cpu_seconds is None else setup.cpu_seconds
    used, asked = cpu_time(setup.server), asyncio.ensure_future(work)
    limit = ""
    try:
        while not limit and not asked.done():
            await asyncio.wait({asked}, timeout=POLL_SECONDS)
            if cpu_time(setup.server) - used > most:
                limit = f"{most:,g} CPU seconds of the model"
            elif time.monotonic() > end:
                limit = f"{setup.seconds:,g} seconds"
        if limit and not asked.done():
            raise StoppedError(f"stopped after {limit}")
    finally:
        asked.cancel()
        await asyncio.wait({asked})
    return asked.result()


async def _until_idle(server: int | None) -> None:
    """Wait until the server has given up the last request, so that the next task has all of it."""
    for _ in range(MOST_QUIET_POLLS):
        before = cpu_time(server)
        await asyncio.sleep(POLL_SECONDS)
        if cpu_time(server) - before < IDLE_SHARE * POLL_SECONDS:
            return


def cpu_time(process: int | None) -> float:
    """Return the CPU time in seconds that a process has used so far; 0 for none."""
    if process is None:
        return 0.0
    after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
