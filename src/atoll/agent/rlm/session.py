"""Several questions over one context, in one sandbox: it is read once, and its variables stay."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Self

from atoll.agent.environment.core import REPLEnvironment
from atoll.agent.rlm.context_sources import read_context
from atoll.errors import AtollError, SandboxClosedError
from atoll.text.quoting import quoted

if TYPE_CHECKING:
    from atoll.agent.environment.options import EnvironmentConfig
    from atoll.agent.rlm.context_sources import ContextSource
    from atoll.agent.rlm.core import RLM
    from atoll.agent.rlm.subcalls import Subcalls
    from atoll.agent.rlm.types import Answer

REMEMBERED, LONGEST = 5, 2_000
"""Earlier questions that the model is told of, and characters of each with its answer."""
CLOSED = (
    "the session is closed: close() was called, or its `with` block, or its RLM's, has ended. "
    "Open another one: rlm.session(context)"
)
GIVEN = ("context", "answer")
"""Variables that every question has."""


class Session:
    """Questions in turn over one context; each is a run with a budget of its own.

    They share one sandbox, so that a question finds the variables of the ones before it. Use it in
    `async with`, or call close().
    """

    def __init__(self, rlm: RLM, context: Any) -> None:
        self._rlm, self._context = rlm, context
        self._source: ContextSource | None = None
        self._live = LiveEnvironment()
        self._earlier: list[str] = []
        self._turn, self._closed = asyncio.Lock(), False

    async def ask(self, question: str) -> Answer:
        """Return the answer to a question, which may refer to earlier ones: "and when?"."""
        async with self._turn:
            if self._closed:
                raise SandboxClosedError(CLOSED)
            if self._source is None:
                self._source = await asyncio.to_thread(read_context, self._context)
            asked = self._with_earlier(question)
            answer = await self._rlm.ask_in(self._live, asked, self._source)
            said = answer.text or f"(no answer: {answer.reason})"
            self._earlier.append(f"Question: {question}\nAnswer: {said}"[:LONGEST])
            return answer

    async def close(self) -> None:
        """End the sandbox; a later question is a SandboxClosedError."""
        async with self._turn:
            self._closed = True
            await self._live.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def _with_earlier(self, question: str) -> str:
        if not self._earlier:
            return question
        told = quoted("earlier", "\n\n".join(self._earlier[-REMEMBERED:]))
        return f"{question}\n\nBefore this question there were:\n{told}"


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
            await self._env.next_question()
            return self._env
        asked = dataclasses.replace(
            config,
            on_llm_query=self._llm_query,
            on_rlm_query=self._rlm_query,
            record_exploration=False,
        )
        env = await _made(asked)
        self._env = await env.__aenter__()
        return self._env

    async def variables(self) -> list[str]:
        """Return the names of variables that earlier questions left; the newest are last."""
        if self._env is None or not self._used:
            return []
        return [one for one in await self._env.variable_names() if one not in GIVEN]

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
