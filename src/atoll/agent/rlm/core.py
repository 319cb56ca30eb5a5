"""RLM, async: a question over a context of any size, answered by code and by sub-calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack
from weakref import WeakSet

from atoll.agent.rlm.budget import Account
from atoll.agent.rlm.context_sources import read_context
from atoll.agent.rlm.model_calls import Concurrency, ModelCalls, usage_fields
from atoll.agent.rlm.models.local import WINDOW
from atoll.agent.rlm.models.resolve import LOCAL, resolve_both
from atoll.agent.rlm.models.types import Message
from atoll.agent.rlm.options import configured
from atoll.agent.rlm.run import LiveEnvironment, Run
from atoll.agent.rlm.types import Answer
from atoll.agent.strategies.cache import ValueCache
from atoll.agent.strategies.operators import Operators
from atoll.agent.trajectory import events
from atoll.agent.trajectory.reader import Trajectory, TrajectoryWriter
from atoll.errors import SandboxClosedError
from atoll.sandbox.context import warn_of_path
from atoll.text.name_hints import RLMHints
from atoll.text.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from atoll.agent.rlm.context_sources import ContextSource
    from atoll.agent.rlm.models.resolve import AnyModel
    from atoll.agent.rlm.options import RLMConfig, RLMOptions
    from atoll.agent.rlm.types import RunResult
    from atoll.agent.strategies.planner import Plan

    OnWarning = Callable[[str, float, float], None]


CLOSED = "the RLM is closed: close() was called, or its `with` block has ended. Make another one"


class RLM(RLMHints):
    """Asks questions; one object may be asked many, also at the same time."""

    def __init__(
        self,
        model: AnyModel,
        config: RLMConfig | None = None,
        *,
        sub_model: AnyModel | None = None,
        base_url: str | None = None,
        window: int | None = None,
        trajectory: PathLike[str] | str | None = None,
        on_event: Callable[[events.Event], None] | None = None,
        **options: Unpack[RLMOptions],
    ) -> None:
        """`options` are fields of RLMConfig and of its EnvironmentConfig; they override `config`.

        A model is a name, a function that takes a prompt and returns a text, or a Model. `base_url`
        is the address of the models, and `window` the number of tokens that they take.
        """
        if window is None and model == LOCAL:
            window = WINDOW
        self._config = configured(config, window, options)
        self._models = resolve_both(model, sub_model, base_url)
        self._path, self._on_event = trajectory, on_event
        self._sessions: WeakSet[Session] = WeakSet()
        self._closed = False

    async def completion(self, question: str, context: Any = None) -> Answer:
        """Return the answer to a question over a text, files, a folder, data, or a Context."""
        warn_of_path(context)
        return await self.ask_in(None, question, context)

    async def ask_in(self, live: LiveEnvironment | None, question: str, context: Any) -> Answer:
        """Return the answer of a run in a session's environment, or in one of its own.

        How the run ended is told to the trajectory.
        """
        if self._closed:
            raise SandboxClosedError(CLOSED)
        with TrajectoryWriter(self._path, on_event=self._on_event) as writer:

            def warn(what: str, used: float, limit: float) -> None:
                writer.emit(
                    events.BudgetWarned(what=what, used=used, limit=limit, share=used / limit)
                )

            calls = self._calls(writer, warn)
            outcome, error = "failed", None
            try:
                ending = await Run(self._config, live).root(question, context, calls)
                outcome = ending.ended.value
            except asyncio.CancelledError:
                outcome = "cancelled"
                raise
            except Exception as exc:
                error = f"{type(exc).__name__}: {exc}"
                raise
            finally:
                writer.emit(
                    events.RunEnded(
                        outcome=outcome,
                        usd=calls.totals.usd,
                        usage=usage_fields(calls.totals.usage),
                        calls=calls.totals.calls,
                        seconds=calls.account.seconds,
                        error=error,
                    )
                )
            return _answer(ending, calls, self._path)

    async def plan(self, question: str, context: Any = None) -> Plan:
        """Return how a question would be worked on, and its price; no model is asked."""
        with TrajectoryWriter(None) as writer:
            return await Run(self._config).plan(question, context, self._calls(writer))

    def operators(self, on_progress: Callable[[int, int], None] | None = None) -> Operators:
        """Return map_query, filter_query, reduce_query and extract with sub_model, on one budget.

        `on_progress` is called with the number of items done, and of all.
        """
        calls, most = self._calls(TrajectoryWriter(None, on_event=self._on_event)), self._config

        async def ask(prompt: str) -> str:
            messages = [Message("user", prompt)]
            return (await calls.ask(calls.models.sub, messages, most.max_tokens)).text

        made = Operators(
            ask, ValueCache(most.environment.query_cache), characters=most.query_characters // 2
        )
        made.on_progress = on_progress or made.on_progress
        return made

    def _calls(self, writer: TrajectoryWriter, warn: OnWarning | None = None) -> ModelCalls:
        return ModelCalls(
            models=self._models,
            account=Account(self._config.budget, on_warning=warn),
            writer=writer,
            concurrency=Concurrency(self._config.concurrency),
            temperature=self._config.temperature,
        )

    def session(self, context: Any = None) -> Session:
        """Return a session for several questions over one context, which is read once."""
        if self._closed:
            raise SandboxClosedError(CLOSED)
        warn_of_path(context)
        made = Session(self, context)
        self._sessions.add(made)
        return made

    async def close(self) -> None:
        """End the sandboxes of sessions, and let go of the models' connections."""
        self._closed = True
        for session in tuple(self._sessions):
            await session.close()
        await self._models.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


def _answer(ending: RunResult, calls: ModelCalls, path: PathLike[str] | str | None) -> Answer:
    return Answer(
        text=ending.text,
        value=ending.value,
        evidence=ending.evidence,
        coverage=ending.coverage,
        way=ending.way,
        why=ending.why,
        ended=ending.ended,
        reason=ending.reason,
        turns=ending.turns,
        cost=calls.totals.usd,
        usage=calls.totals.usage,
        calls=calls.totals.calls,
        seconds=calls.account.seconds,
        trajectory=Trajectory(events=calls.writer.events),
        trajectory_path=None if path is None else Path(path),
        exploration=ending.exploration,
        learner=ending.learner,
    )


REMEMBERED, LONGEST = 5, 2_000
"""Earlier questions that the model is told of, and characters of each with its answer."""
SESSION_CLOSED = (
    "the session is closed: close() was called, or its `with` block, or its RLM's, has ended. "
    "Open another one: rlm.session(context)"
)


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
                raise SandboxClosedError(SESSION_CLOSED)
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
        earlier = quoted("earlier", "\n\n".join(self._earlier[-REMEMBERED:]))
        return f"{question}\n\nBefore this question there were:\n{earlier}"
