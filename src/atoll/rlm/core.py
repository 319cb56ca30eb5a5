"""RLM, async: a question over a context of any size, answered by code and by sub-calls."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from atoll.policy import check_keys
from atoll.rlm.asking import Asker, told
from atoll.rlm.budget import Account, Budget
from atoll.rlm.lanes import Lanes
from atoll.rlm.models.resolve import resolve_both
from atoll.rlm.run import Run
from atoll.rlm.settings import RLMOptions, Settings
from atoll.rlm.trajectory import events
from atoll.rlm.trajectory.writer import TrajectoryWriter
from atoll.rlm.types import Answer
from atoll.rlm.window import fitting

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from atoll.rlm.loop import Ending
    from atoll.rlm.models.types import Model


class RLM:
    """Asks questions; one object may be asked many, also at the same time."""

    def __init__(
        self,
        model: str | Model,
        *,
        sub_model: str | Model | None = None,
        base_url: str | None = None,
        window: int | None = None,
        budget: Budget | None = None,
        trajectory: PathLike[str] | str | None = None,
        on_event: Callable[[events.Event], None] | None = None,
        **options: Unpack[RLMOptions],
    ) -> None:
        """`options` are fields of Settings, and options of REPLEnvironment for its sandboxes.

        `base_url` is the address of the models, `window` the number of tokens that they take.
        """
        check_keys("option", options, RLMOptions.__annotations__)
        main, sub = resolve_both(model, sub_model, base_url)
        settings: dict[str, Any] = {**fitting(window), **options}
        known = {field.name for field in dataclasses.fields(Settings)}
        own = {name: value for name, value in settings.items() if name in known}
        rest = {name: value for name, value in settings.items() if name not in known}
        self._settings = Settings(
            model=main,
            sub_model=sub,
            environment=rest,
            **own,
        )
        self._budget, self._path = budget or Budget(), trajectory
        self._on_event = on_event

    async def completion(self, question: str, context: Any = None) -> Answer:
        """The answer to a question over a text, files, a folder, data, or a Context."""
        with TrajectoryWriter(self._path, on_event=self._on_event) as writer:
            account = Account(self._budget, on_warning=_warner(writer))
            asker = Asker(
                account=account,
                writer=writer,
                lanes=Lanes(self._settings.concurrency),
                temperature=self._settings.temperature,
            )
            ending = await self._run(question, context, asker)
            return _answer(ending, asker, self._path)

    async def _run(self, question: str, context: Any, asker: Asker) -> Ending:
        """The run, and how it ended told to the trajectory."""
        outcome, error = "failed", None
        try:
            ending = await Run(self._settings, self._budget).root(question, context, asker)
            outcome = "forced" if ending.forced else "answered"
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception as exc:
            error = f"{type(exc).__name__}: {exc}"
            raise
        else:
            return ending
        finally:
            _tell_end(asker, outcome, error)

    async def close(self) -> None:
        """Let go of the models' connections."""
        await self._settings.model.close()
        if self._settings.sub_model is not self._settings.model:
            await self._settings.sub_model.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


def _warner(writer: TrajectoryWriter) -> Callable[[str, float, float], None]:
    def warn(what: str, used: float, limit: float) -> None:
        writer.emit(events.BudgetWarned(what=what, used=used, limit=limit, share=used / limit))

    return warn


def _answer(ending: Ending, asker: Asker, path: PathLike[str] | str | None) -> Answer:
    return Answer(
        text=ending.text,
        value=ending.value,
        evidence=ending.evidence,
        coverage=ending.coverage,
        way=ending.way,
        why=ending.why,
        forced=ending.forced,
        turns=ending.turns,
        cost=asker.totals.usd,
        usage=asker.totals.usage,
        calls=asker.totals.calls,
        seconds=asker.account.seconds,
        trajectory=asker.writer.events,
        trajectory_path=None if path is None else Path(path),
    )


def _tell_end(asker: Asker, outcome: str, error: str | None) -> None:
    asker.writer.emit(
        events.RunEnded(
            outcome=outcome,
            usd=asker.totals.usd,
            usage=told(asker.totals.usage),
            calls=asker.totals.calls,
            seconds=asker.account.seconds,
            error=error,
        )
    )
