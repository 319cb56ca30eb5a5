"""RLM for blocking code: a typed facade over the async one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self, Unpack

from atoll.agent.rlm import core
from atoll.concurrency.portal import Portal
from atoll.sandbox.context import warn_of_path
from atoll.text.name_hints import RLMHints

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from os import PathLike

    from atoll.agent.rlm.models.resolve import AnyModel
    from atoll.agent.rlm.options import RLMConfig, RLMOptions
    from atoll.agent.rlm.types import Answer
    from atoll.agent.strategies import operators
    from atoll.agent.strategies.planner import Plan
    from atoll.agent.trajectory.events import Event


PATIENCE_SECONDS = 2.0
"""How long an interrupted run is waited for until it has ended."""


class RLM(RLMHints):
    """Asks questions over contexts of any size; one object may be asked many."""

    def __init__(
        self,
        model: AnyModel,
        config: RLMConfig | None = None,
        *,
        sub_model: AnyModel | None = None,
        base_url: str | None = None,
        window: int | None = None,
        trajectory: PathLike[str] | str | None = None,
        on_event: Callable[[Event], None] | None = None,
        **options: Unpack[RLMOptions],
    ) -> None:
        """Take the arguments of atoll.aio.RLM."""
        self._portal = Portal.shared()
        self._inner = core.RLM(
            model,
            config,
            sub_model=sub_model,
            base_url=base_url,
            window=window,
            trajectory=trajectory,
            on_event=on_event,
            **options,
        )

    def completion(self, question: str, context: Any = None) -> Answer:
        """Return the answer to a question over a text, files, a folder, data, or a Context."""
        warn_of_path(context)
        return self.wait_for(self._inner.ask_in(None, question, context))

    def plan(self, question: str, context: Any = None) -> Plan:
        """Return how a question would be worked on, and its price; no model is asked."""
        return self._portal.run(self._inner.plan(question, context))

    def operators(self, on_progress: Callable[[int, int], None] | None = None) -> Operators:
        """Return map_query, filter_query, reduce_query, extract with sub_model, on one budget."""
        return Operators(self._portal, self._inner.operators(on_progress))

    def wait_for(self, answering: Awaitable[Answer]) -> Answer:
        """Return the answer of a run; an interrupted run is waited for, for a moment."""
        ended = threading.Event()

        async def answer() -> Answer:
            try:
                return await answering
            finally:
                ended.set()

        try:
            return self._portal.run(answer())
        except (KeyboardInterrupt, SystemExit):
            ended.wait(PATIENCE_SECONDS)  # the program may end next, and with it whoever cleans up
            raise

    def session(self, context: Any = None) -> Session:
        """Return a session for several questions over one context, which is read once."""
        warn_of_path(context)
        return Session(self, self._inner.session(context))

    def close(self) -> None:
        """End the sandboxes of sessions, and let go of the models' connections."""
        self._portal.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Session:
    """Questions in turn over one context, in one sandbox: use it in `with`, or close it."""

    def __init__(self, rlm: RLM, inner: core.Session) -> None:
        self._rlm, self._inner = rlm, inner

    def ask(self, question: str) -> Answer:
        """Return the answer to a question, which may refer to earlier ones: "and when?"."""
        return self._rlm.wait_for(self._inner.ask(question))

    def close(self) -> None:
        """End the sandbox; a later question is a SandboxClosedError."""
        Portal.shared().run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Operators:
    """The typed operators of atoll.aio.RLM for blocking code."""

    def __init__(self, portal: Portal, inner: operators.Operators) -> None:
        self._portal, self._inner = portal, inner
        self.price = inner.price

    def map_query(self, items: list[Any], instruction: str, returns: Any = str) -> list[Any]:
        """Return what a model says of each item, as `returns` says; None where it failed."""
        return self._portal.run(self._inner.map_query(items, instruction, returns))

    def filter_query(self, items: list[Any], condition: str) -> list[Any]:
        """Return the items for which a model says that the condition holds."""
        return self._portal.run(self._inner.filter_query(items, condition))

    def reduce_query(self, items: list[Any], instruction: str, returns: Any = str) -> Any:
        """Return all items as one; sum, max, min, mean and count are computed by code."""
        return self._portal.run(self._inner.reduce_query(items, instruction, returns))

    def extract(self, text: str, returns: Any, instruction: str = "Find the records.") -> list[Any]:
        """Return the records in a text of any length; values that are not in it are dropped."""
        return self._portal.run(self._inner.extract(text, returns, instruction))
