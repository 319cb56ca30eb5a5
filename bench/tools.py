"""A row about tool calls: read-only calls that run in parallel while their cell runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import atoll
from bench.rows import Arms, Goal, row, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Scale

CALLS, DELAY = 4, 0.1
CELL = "\n".join(f"v{n} = look({n})" for n in range(CALLS)) + "\nassert v3 == 3"


@atoll.tool(read_only=True)
def look(n: int) -> int:
    """Return the number, after a while."""
    time.sleep(DELAY)
    return n


@row(
    what=f"environment: a turn with {CALLS} tool calls of {DELAY * 1000:.0f} ms",
    against="the same, one after the other",
    rounds=10,
    goal=Goal(ratio=0.5),
)
def parallel_tools(_scale: Scale) -> Iterator[Arms]:
    with _environment(parallel=True) as ours, _environment(parallel=False) as theirs:
        yield Arms(ours=timed(lambda: _turn(ours)), theirs=timed(lambda: _turn(theirs)))


def _environment(*, parallel: bool) -> atoll.REPLEnvironment:
    return atoll.REPLEnvironment(backend="native", tools=[look], parallel_tools=parallel)


def _turn(env: atoll.REPLEnvironment) -> None:
    result = env.execute(CELL).result
    assert result.success, result.error
