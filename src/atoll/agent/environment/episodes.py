"""An environment and the episodic memory: advice for a task, and a record of how it was explored.

    task ──▶ similar explorations (phase 4) ──▶ advice
    answer ──▶ strategy (1), token efficiency (2), Q by the outcome (3) ──▶ memory

A failing memory does not end a session: the logger `atoll` says why it goes on without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.agent.environment.exploration import ExplorationLog
from atoll.agent.memory.learner import Learner
from atoll.agent.memory.planner import Advice, quality
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.agent.environment.exploration import Exploration
    from atoll.agent.environment.tools.invocations import InvocationLog
    from atoll.agent.environment.types import Final
    from atoll.agent.memory.episodic import EpisodicMemory

STRATEGIES = ("scan", "search", "delegated")
_SOUGHT = ("pattern", "query", "prompt", "url", "path")
"""Arguments that say what was looked for."""
MOST_SOUGHT = 5
UNTOLD = "explore a context"


class Episodes:
    """One task after the other of one environment; called in threads."""

    def __init__(
        self,
        memory: EpisodicMemory | None,
        log: InvocationLog,
        clean: Callable[[str], str],
        context_tokens: Callable[[], int],
    ) -> None:
        """`context_tokens` is asked for when something is recorded: counting takes a moment."""
        self._memory, self._log, self._clean = memory, log, clean
        self._context_tokens = context_tokens
        self._learner: Learner | None = None
        self._task, self._recorded = "", False
        self.advice = Advice()

    @property
    def learns(self) -> bool:
        """Whether there is a memory."""
        return self._memory is not None

    def begin(self, task: str | None) -> None:
        """Begin a task, and look up how similar ones went."""
        self._task, self._recorded = self._clean(task or ""), False
        self.advice = Advice()
        self._learner = None if self._memory is None else Learner(self._memory, lambda _why: None)
        if self._learner is not None and self._task:
            self.advice = self._learner.advise(self._task, STRATEGIES)

    def exploration(self, final: Final | None) -> Exploration:
        """Return how the task was explored so far."""
        texts = () if final is None else (final.text, *(one.quote for one in final.evidence))
        return ExplorationLog(self._log).summary(*texts)

    def record(self, final: Final | None) -> None:
        """Remember how the task was explored, once; a task without a look leaves nothing."""
        if self._learner is None or self._recorded:
            return
        seen = self.exploration(final)
        if seen.strategy == "none":
            return
        self._recorded = True
        self._learner.describe(self._task or self._sought())
        outcome = "unanswered" if final is None else "answered"
        quotes = () if final is None else final.evidence
        unfound = sum(not one.found for one in quotes)
        self._learner.remember(
            seen.strategy,
            done=", ".join(f"{name} {number}" for name, number in seen.calls.items()),
            outcome=outcome,
            quality=quality(outcome, quotes=len(quotes), unfound=unfound),
            tokens=seen.exploration_tokens + seen.result_tokens,
            context_tokens=self._context_tokens(),
            efficiency=seen.token_efficiency,
        )

    def reward(self, given: float) -> bool:
        """Replace the quality that the outcome implied; return whether it was stored."""
        if self._learner is None:
            raise ConfigError("this environment has no memory: give it memory=FILE")
        return self._learner.reward(given)

    def _sought(self) -> str:
        """Return what was looked for, as the task if none was given."""
        _, calls = self._log.of_question()
        given = (one.arguments.get(name) for one in calls for name in _SOUGHT)
        texts = list(dict.fromkeys(text for text in given if isinstance(text, str) and text))
        return self._clean("; ".join(texts[:MOST_SOUGHT])) or UNTOLD
