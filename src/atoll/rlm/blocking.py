"""RLM for blocking code: a typed shell around the async one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from atoll.rlm import core
from atoll.sync import Portal

if TYPE_CHECKING:
    from atoll.rlm.models.types import Model
    from atoll.rlm.types import Answer


PATIENCE_SECONDS = 2.0
"""How long an interrupted run is waited for until it has ended."""


class RLM:
    """Asks questions over contexts of any size; one object may be asked many."""

    def __init__(self, model: str | Model, **settings: Any) -> None:
        """As atoll.aio.RLM: sub_model, budget, max_depth, trajectory, and what sandboxes take."""
        self._portal = Portal.shared()
        self._inner = core.RLM(model, **settings)

    def completion(self, question: str, context: Any = None) -> Answer:
        """The answer to a question over a text, files, a folder, data, or a Context."""
        ended = threading.Event()
        try:
            return self._portal.run(self._completion(ended, question, context))
        except (KeyboardInterrupt, SystemExit):
            ended.wait(PATIENCE_SECONDS)  # the program may end next, and with it whoever cleans up
            raise

    def close(self) -> None:
        """Let go of the models' connections."""
        self._portal.run(self._inner.close())

    async def _completion(self, ended: threading.Event, question: str, context: Any) -> Answer:
        try:
            return await self._inner.completion(question, context)
        finally:
            ended.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
