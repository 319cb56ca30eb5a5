"""The environment of one question, or of several in turn: variables and what was seen are kept."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from atoll.environment.core import REPLEnvironment
from atoll.errors import AtollError, SandboxError

if TYPE_CHECKING:
    from atoll.environment.options import EnvironmentConfig
    from atoll.rlm.subcalls import Subcalls

GIVEN = ("context", "answer")
"""Variables that every question has."""
MOST_NAMES = 20
"""Variables that a model is told of."""


class LiveEnvironment:
    """Opens an environment for the first question and hands the same one to the next.

    Guest code calls llm_query and rlm_query through this object, so that a call is paid for by the
    question that is worked on now.
    """

    def __init__(self) -> None:
        self._env: REPLEnvironment | None = None
        self._subcalls: Subcalls | None = None
        self._used = False

    async def open(self, config: EnvironmentConfig, subcalls: Subcalls) -> REPLEnvironment:
        """Return the environment, ready for a question whose sub-calls are these."""
        self._subcalls = subcalls
        if self._env is not None:
            self._used = True
            self._env.next_question()
            return self._env
        asked = dataclasses.replace(
            config, on_llm_query=self._llm_query, on_rlm_query=self._rlm_query
        )
        env = await _made(asked)
        self._env = await env.__aenter__()
        return self._env

    async def variables(self) -> list[str]:
        """Return the names of variables that earlier questions left; the newest are last."""
        if self._env is None or not self._used:
            return []
        with contextlib.suppress(SandboxError):
            names = [one.name for one in await self._env.box.variables()]
            return [one for one in names if one not in GIVEN][-MOST_NAMES:]
        return []

    async def close(self) -> None:
        """End the environment."""
        env, self._env = self._env, None
        if env is not None:
            await env.close()

    async def _llm_query(self, *args: Any) -> Any:
        assert self._subcalls is not None
        return await self._subcalls.llm_query(*args)

    async def _rlm_query(self, *args: Any) -> Any:
        assert self._subcalls is not None
        return await self._subcalls.rlm_query(*args)


async def _made(config: EnvironmentConfig) -> REPLEnvironment:
    """Make an environment in a thread, as data is written out for its index; never left open."""
    making = asyncio.ensure_future(asyncio.to_thread(REPLEnvironment, config))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        with contextlib.suppress(AtollError):
            await (await making).close()
        raise
