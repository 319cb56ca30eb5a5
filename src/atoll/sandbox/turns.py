"""Finds a tool that uses the sandbox whose cell is calling it: each would wait for the other.

The context variables of a cell's caller are those of its tools (see bridge), across threads too.
So a cell leaves its mark there while it runs, and a request that finds the mark of its own sandbox
fails.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLED_BY_ITSELF = (
    "a tool cannot use the sandbox whose code is calling it: the code waits for the tool, and the "
    "tool would wait for the code. Return the value to the code, or use another sandbox"
)


@dataclass(slots=True, eq=False)
class _Turn:
    owner: object
    over: bool = False


_TURNS: ContextVar[tuple[_Turn, ...]] = ContextVar("atoll_turns", default=())


def refuse_own_tool(owner: object) -> tuple[_Turn, ...]:
    """Raise ConfigError if a request of `owner` that still runs has called what runs here.

    Return the turns of other owners that still run.
    """
    running = []
    for turn in _TURNS.get():
        if not turn.over:
            if turn.owner is owner:
                raise ConfigError(CALLED_BY_ITSELF)
            running.append(turn)
    return tuple(running)


@contextmanager
def running(owner: object) -> Iterator[None]:
    """Let no tool that is called meanwhile use `owner`; other callers are free to."""
    earlier = refuse_own_tool(owner) if _TURNS.get() else ()
    turn = _Turn(owner)
    _TURNS.set((*earlier, turn))
    try:
        yield
    finally:
        turn.over = True


class TurnLock(asyncio.Lock):
    """The lock that the requests of a sandbox take; a tool of its own gets ConfigError."""

    _turn: _Turn | None = None

    async def acquire(self) -> Literal[True]:
        """Wait for the lock."""
        earlier = refuse_own_tool(self) if _TURNS.get() else ()
        await super().acquire()
        self._turn = turn = _Turn(self)
        _TURNS.set((*earlier, turn))
        return True

    def release(self) -> None:
        """Release the lock."""
        if self._turn is not None:
            self._turn.over = True
        super().release()
