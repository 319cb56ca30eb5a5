"""RLM, async: a question over a context of any size, answered by code and by sub-calls."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll import __version__
from atoll.environment.core import REPLEnvironment
from atoll.environment.setting import context_for, index_of
from atoll.errors import AtollError
from atoll.rlm import prompts
from atoll.rlm.asking import Asker, told
from atoll.rlm.budget import Account, Budget, BudgetError
from atoll.rlm.describe import describe, facts
from atoll.rlm.loop import Ending, Loop
from atoll.rlm.models.resolve import resolve
from atoll.rlm.models.types import Message
from atoll.rlm.plan import plan
from atoll.rlm.run import Lanes, Settings
from atoll.rlm.subcalls import Subcalls
from atoll.rlm.trajectory import events
from atoll.rlm.trajectory.writer import TrajectoryWriter
from atoll.rlm.types import Answer

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from atoll.rlm.models.types import Model


class RLM:
    """Asks questions; one object may be asked many, also at the same time."""

    def __init__(
        self,
        model: str | Model,
        *,
        sub_model: str | Model | None = None,
        budget: Budget | None = None,
        trajectory: PathLike[str] | str | None = None,
        on_event: Callable[[events.Event], None] | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are fields of Settings, and options of REPLEnvironment for its sandboxes."""
        main = resolve(model) if isinstance(model, str) else model
        sub = main if sub_model is None else sub_model
        known = {field.name for field in dataclasses.fields(Settings)}
        own = {name: value for name, value in settings.items() if name in known}
        rest = {name: value for name, value in settings.items() if name not in known}
        self._settings = Settings(
            model=main,
            sub_model=resolve(sub) if isinstance(sub, str) else sub,
            environment=rest,
            **own,
        )
        self._budget, self._path = budget or Budget(), trajectory
        self._on_event = on_event
