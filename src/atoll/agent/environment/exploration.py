"""How a context was explored: strategy and costs of a question, and their record in the memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.agent.memory.learner import Advice, Learner, quality
from atoll.errors import ConfigError
from atoll.text.tokens import WHOLE, estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from atoll.agent.environment.tools.invocations import InvocationLog
    from atoll.agent.environment.turns import Final
    from atoll.agent.memory.episodic import EpisodicMemory
    from atoll.agent.rlm.types import RunResult
    from atoll.search.index import ContextIndex


SCANS = frozenset({"peek", "list_dir", "archive_open", "archive_file", "web_fetch"})
SEARCHES = frozenset({"grep", "code_search", "doc_search", "archive_search"})
DELEGATIONS = frozenset({"llm_query", "rlm_query", "llm_call", "delegate", "escalate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """The strategy of a run, and what it took."""

    strategy: str
    """`scan`, `search`, `delegated` or `mixed`; `direct` if the whole context was shown; `none`."""
    calls: Mapping[str, int] = field(default_factory=dict)
    exploration_tokens: int = 0
    """What looking gave to code and to sub-calls, and what those answered, in tokens, about."""
    result_tokens: int = 0
    """Of the answer and its quotes, about."""

    @property
    def token_efficiency(self) -> float:
        """Result tokens per exploration token; higher is better. 0 if nothing was looked at."""
        return self.result_tokens / self.exploration_tokens if self.exploration_tokens else 0.0

    def __str__(self) -> str:
        calls = ", ".join(f"{name} {number}" for name, number in self.calls.items())
        return f"{self.strategy} ({calls})" if calls else self.strategy


@dataclass(frozen=True, slots=True)
class ExplorationLog:
    """Which tools were called to look, how often, and how many tokens that was."""

    log: InvocationLog

    @property
    def strategy(self) -> str:
        """The kind of calls that prevails; `mixed` if none does, `none` without any."""
        return self.summary().strategy

    def summary(self, *results: str) -> Exploration:
        """Return the strategy with its costs; `results` are the answer and its quotes."""
        counts, kept = self.log.of_question()
        calls = {name: counts[name] for name in counts if name in SCANS | SEARCHES | DELEGATIONS}
        scans = searches = asks = tokens = 0
        for name, number in calls.items():
            scans += number * (name in SCANS)
            searches += number * (name in SEARCHES)
            asks += number * (name in DELEGATIONS)
        for call in kept:
            tokens += call.tokens_in + call.tokens_out
            tokens += call.found_tokens if call.tool in SCANS | SEARCHES else 0
        strategy = "none"
        if asks:
            strategy = "delegated" if asks >= scans + searches else "mixed"
        elif scans or searches:
            strategy = "scan" if scans > searches else "search" if searches > scans else "mixed"
        return Exploration(
            strategy=strategy,
            calls=calls,
            exploration_tokens=tokens,
            result_tokens=sum(map(estimate, results)),
        )


def explored(log: InvocationLog, answer: Final | RunResult | None) -> Exploration:
    """Return how a question was explored so far."""
    texts = () if answer is None else (answer.text, *(given.quote for given in answer.evidence))
    return ExplorationLog(log).summary(*texts)


def context_tokens(index: ContextIndex | None) -> int:
    """Return about how many tokens a context has; of a long one, by its beginning."""
    if index is None:
        return 0
    shown = min(index.length, WHOLE)
    return estimate(index.text(0, shown)) * max(1, index.length // max(1, shown))


STRATEGIES = ("scan", "search", "delegated")
_SOUGHT = ("pattern", "query", "prompt", "url", "path")
"""Arguments that say what was looked for."""
MAX_SOUGHT = 5
UNTOLD = "explore a context"


class Episodes:
    """One task after the other of one environment; called in threads."""

    def __init__(
        self,
        memory: EpisodicMemory,
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

    def begin(self, task: str | None) -> None:
        """Begin a task, and look up how similar ones went."""
        self._task, self._recorded = self._clean(task or ""), False
        self.advice = Advice()
        self._learner = Learner(self._memory, lambda _why: None)
        if self._task:
            self.advice = self._learner.advise(self._task, STRATEGIES)

    def record(self, final: Final | None) -> None:
        """Remember how the task was explored, once; a task without a look leaves nothing."""
        if self._learner is None or self._recorded:
            return
        seen = explored(self._log, final)
        if seen.strategy == "none":
            return
        self._recorded = True
        self._learner.describe(self._task or self._sought())
        outcome = "unanswered" if final is None else "answered"
        quotes = () if final is None else final.evidence
        unfound = sum(not quote.found for quote in quotes)
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
            raise ConfigError("no task was begun: start() the environment first")
        return self._learner.reward(given)

    def _sought(self) -> str:
        """Return the patterns and queries of the calls, as the task if none was given."""
        _, calls = self._log.of_question()
        given = (call.arguments.get(name) for call in calls for name in _SOUGHT)
        texts = list(dict.fromkeys(text for text in given if isinstance(text, str) and text))
        return self._clean("; ".join(texts[:MAX_SOUGHT])) or UNTOLD
