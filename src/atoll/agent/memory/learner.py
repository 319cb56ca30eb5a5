"""Learner: connects one run to a memory. A failing memory does not end the run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from atoll.agent.memory.episodic import RATE
from atoll.agent.memory.planner import Advice, advise, worth
from atoll.errors import AtollError, ConfigError
from atoll.log import LogEvent, to_stdlib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atoll.agent.memory.episodic import EpisodicMemory

_FAILURES = (AtollError, OSError, ValueError, RuntimeError, ImportError)
"""The failures of the file and of the encoder."""


class Learner:
    """One run: gets advice before it, records its outcome after it, and takes rewards later."""

    def __init__(self, memory: EpisodicMemory, on_failure: Callable[[str], None]) -> None:
        """`on_failure` is called once, with the reason why the run continues without a memory."""
        self._memory, self._on_failure = memory, on_failure
        self._failed = False
        self._intent, self._advice = "", Advice()
        self._followed: list[int] = []
        self._item: int | None = None
        self._tokens, self._reward = 0, 0.0

    def advise(self, intent: str, allowed: Sequence[str]) -> Advice:
        """Return advice for a question; none if the memory fails."""
        self._intent = intent
        found = self._tried(lambda: advise(self._memory, intent, allowed))
        self._advice = found or Advice()
        return self._advice

    def describe(self, intent: str) -> None:
        """Set the question that the run is remembered by, if no advice was asked for."""
        self._intent = self._intent or intent

    def remember(
        self,
        strategy: str,
        *,
        done: str,
        outcome: str,
        quality: float,
        tokens: int,
        context_tokens: int,
        efficiency: float = 0.0,
    ) -> None:
        """Reward the items whose advice the run followed, and record the run itself."""
        self._tokens, self._reward = tokens, worth(quality, tokens)
        self._followed = [one.id for one in self._advice.items if one.strategy == strategy]
        facts: dict[str, Any] = {"done": done, "outcome": outcome, "q": self._reward}
        facts |= {"tokens": tokens, "context_tokens": context_tokens, "efficiency": efficiency}

        def keep() -> int:
            item = self._memory.add(self._intent, strategy, **facts)
            self._followed = [one for one in self._followed if one != item]  # add() rewarded it
            self._memory.reward(self._followed, self._reward)
            return item

        self._item = self._tried(keep)

    def reward(self, quality: float) -> bool:
        """Replace the quality that the ending implied by a number from 0 to 1.

        Return whether it was stored. If called again, the last value counts.
        """
        known = isinstance(quality, (int, float)) and not isinstance(quality, bool)
        if not known or not 0 <= quality <= 1:
            raise ConfigError(f"a reward is a number from 0 to 1, not {quality!r}")
        if self._item is None:
            return False
        item, change = self._item, worth(quality, self._tokens) - self._reward

        def correct() -> bool:
            known = self._memory.get(item)
            first = known is not None and known.runs == 1
            self._memory.adjust(self._followed, RATE * change)
            self._memory.adjust([item], change if first else RATE * change)
            self._reward += change
            return True

        return self._tried(correct) or False

    def _tried(self, action: Callable[[], Any]) -> Any:
        """Return the result of an action; None if it or an earlier one has failed."""
        if self._failed:
            return None
        try:
            return action()
        except _FAILURES as exc:
            self._failed = True
            reason = f"{exc}"[:500]
            to_stdlib(
                LogEvent(name="memory_failed", level=logging.WARNING, fields={"reason": reason})
            )
            self._on_failure(reason)
            return None
