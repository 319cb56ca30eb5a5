"""ExplorationLog: how an answer was looked for, as a view on the calls since it was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.text.tokens import WHOLE, estimate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.agent.environment.tools.invocations import InvocationLog
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


class ExplorationLog:
    """Which tools were called to look, how often, and how many tokens that was."""

    def __init__(self, log: InvocationLog) -> None:
        self._log = log

    @property
    def calls(self) -> dict[str, int]:
        """How often each tool that looks was called."""
        looks = SCANS | SEARCHES | DELEGATIONS
        counts, _ = self._log.of_question()
        return {name: number for name, number in counts.items() if name in looks}

    @property
    def strategy(self) -> str:
        """The kind of calls that prevails; `mixed` if none does, `none` without any."""
        calls = self.calls
        scans, searches, asks = (
            sum(number for name, number in calls.items() if name in kind)
            for kind in (SCANS, SEARCHES, DELEGATIONS)
        )
        if not scans + searches + asks:
            return "none"
        if asks:
            return "delegated" if asks >= scans + searches else "mixed"
        if scans == searches:
            return "mixed"
        return "scan" if scans > searches else "search"

    @property
    def tokens(self) -> int:
        """Tokens of what looking returned, and of prompts to sub-calls with their answers."""
        looks = SCANS | SEARCHES
        _, kept = self._log.of_question()
        seen = sum(one.found_tokens for one in kept if one.tool in looks)
        return seen + sum(one.tokens_in + one.tokens_out for one in kept)

    def summary(self, *results: str) -> Exploration:
        """Return the strategy with its costs; `results` are the answer and its quotes."""
        return Exploration(
            strategy=self.strategy,
            calls=self.calls,
            exploration_tokens=self.tokens,
            result_tokens=sum(map(estimate, results)),
        )


def context_tokens(index: ContextIndex | None) -> int:
    """Return about how many tokens a context has; of a long one, by its beginning."""
    if index is None:
        return 0
    shown = min(index.length, WHOLE)
    return estimate(index.text(0, shown)) * max(1, index.length // max(1, shown))
