"""RLM, async: a question over a context of any size, answered by code and by sub-calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack
from weakref import WeakSet

from atoll.agent.rlm.budget import Account
from atoll.agent.rlm.model_calls import Concurrency, ModelCalls, usage_fields
from atoll.agent.rlm.models.local.server import WINDOW
from atoll.agent.rlm.models.resolve import LOCAL, resolve_both
from atoll.agent.rlm.options import configured
from atoll.agent.rlm.run import Run
from atoll.agent.rlm.session import Session
from atoll.agent.rlm.types import Answer
from atoll.agent.trajectory import events
from atoll.agent.trajectory.reader import Trajectory
from atoll.agent.trajectory.writer import TrajectoryWriter
from atoll.errors import SandboxClosedError
from atoll.sandbox.context import warn_of_path
from atoll.text.name_hints import RLMHints

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from atoll.agent.rlm.models.resolve import AnyModel
    from atoll.agent.rlm.options import RLMConfig, RLMOptions
    from atoll.agent.rlm.session import LiveEnvironment
    from atoll.agent.rlm.types import Ending


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
        """The answer to a question over a text, files, a folder, data, or a Context."""
        warn_of_path(context)
        return await self.ask_in(None, question, context)

    async def ask_in(self, live: LiveEnvironment | None, question: str, context: Any) -> Answer:
        """Return the answer of a run in a session's environment, or in one of its own."""
        self._require_open()
        with TrajectoryWriter(self._path, on_event=self._on_event) as writer:
            account = Account(self._config.budget, on_warning=_warner(writer))
            calls = ModelCalls(
                models=self._models,
                account=account,
                writer=writer,
                concurrency=Concurrency(self._config.concurrency),
                temperature=self._config.temperature,
            )
            ending = await self._run(Run(self._config, live), question, context, calls)
            return _answer(ending, calls, self._path)

    def session(self, context: Any = None) -> Session:
        """Return a session for several questions over one context, which is read once."""
        self._require_open()
        warn_of_path(context)
        made = Session(self, context)
        self._sessions.add(made)
        return made

    async def _run(self, run: Run, question: str, context: Any, calls: ModelCalls) -> Ending:
        """The run, and how it ended told to the trajectory."""
        outcome, error = "failed", None
        try:
            ending = await run.root(question, context, calls)
            outcome = ending.ended.value
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception as exc:
            error = f"{type(exc).__name__}: {exc}"
            raise
        else:
            return ending
        finally:
            _tell_end(calls, outcome, error)

    async def close(self) -> None:
        """End the sandboxes of sessions, and let go of the models' connections."""
        self._closed = True
        for one in tuple(self._sessions):
            await one.close()
        await self._models.close()

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxClosedError(CLOSED)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


def _warner(writer: TrajectoryWriter) -> Callable[[str, float, float], None]:
    def warn(what: str, used: float, limit: float) -> None:
        writer.emit(events.BudgetWarned(what=what, used=used, limit=limit, share=used / limit))

    return warn


def _answer(ending: Ending, calls: ModelCalls, path: PathLike[str] | str | None) -> Answer:
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


def _tell_end(calls: ModelCalls, outcome: str, error: str | None) -> None:
    calls.writer.emit(
        events.RunEnded(
            outcome=outcome,
            usd=calls.totals.usd,
            usage=usage_fields(calls.totals.usage),
            calls=calls.totals.calls,
            seconds=calls.account.seconds,
            error=error,
        )
    )
