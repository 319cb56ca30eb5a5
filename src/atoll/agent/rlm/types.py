"""The result of a run: an answer, or the reason why it has no answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from atoll.agent.rlm.models.types import Usage
from atoll.agent.trajectory.reader import Trajectory
from atoll.errors import ConfigError
from atoll.text import markup

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.agent.environment.exploration import Exploration
    from atoll.agent.memory.learner import Learner
    from atoll.search.coverage import Coverage, CoverageLog
    from atoll.search.evidence import Evidence


class Ended(StrEnum):
    """How a run ended. Only ANSWERED is an answer that the model gave by itself."""

    ANSWERED = "answered"
    FORCED = "forced"
    """A limit was reached: the text is what the model knew by then."""
    REFUSED = "refused"
    """The model gave an answer that breaks a rule of the run, such as to look first."""
    UNANSWERED = "unanswered"
    """There is not an answer: the text is empty, `reason` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one loop, or one direct question, came to: a run's, or that of a run inside it."""

    ended: Ended = Ended.ANSWERED
    text: str = ""
    reason: str = ""
    how: str = "text"
    value: Any = None
    evidence: tuple[Evidence, ...] = ()
    coverage: Coverage | None = None
    ledger: CoverageLog | None = None
    """What was seen of the context: a run that shares the context adds it to its own."""
    turns: int = 0
    way: str = "loop"
    why: str = ""
    exploration: Exploration | None = None
    learner: Learner | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer:
    """The answer to a question, and how it was found. print() shows its text."""

    text: str
    ended: Ended = Ended.ANSWERED
    """`answered`, `forced`, `refused` or `unanswered`: only the first is an answer to rely on."""
    reason: str = ""
    """Why it did not end as `answered`: the limit, the rule, or what was wrong with the replies."""
    value: Any = None
    """The answer as data, if the model gave more than text."""
    evidence: tuple[Evidence, ...] = ()
    """Quotes that the model gave; `found` says whether the context has them."""
    coverage: Coverage | None = None
    """None if the model was shown the whole context."""
    way: str = "loop"
    """`loop`, or `direct` if the model was shown the whole context."""
    why: str = ""
    """Why it took that way."""
    cost: float | None = None
    """Dollars for all calls together; None if the price of one is not known."""
    usage: Usage = field(default_factory=Usage)
    calls: int = 0
    turns: int = 0
    seconds: float = 0.0
    trajectory: Trajectory = field(default_factory=Trajectory)
    """Every step: a sequence of events with tree(), save(path) and to_html(path)."""
    trajectory_path: Path | None = None
    exploration: Exploration | None = None
    """The strategy of the run, and its token efficiency."""
    learner: Learner | None = field(default=None, compare=False)
    """The run's way to the memory, if it had one."""

    def reward(self, quality: float) -> bool:
        """Tell the memory how good this answer is, from 0 to 1; return whether it was kept.

        It counts in place of what the run's ending suggests. Given again, the last one counts.
        """
        if self.learner is None:
            raise ConfigError("this run had no memory to reward: RLM(..., memory='runs.db')")
        return self.learner.reward(quality)

    @property
    def unfound(self) -> tuple[Evidence, ...]:
        """The quotes that are not in the context."""
        return tuple(quote for quote in self.evidence if not quote.found)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Answer({markup.short(self.text)}, {', '.join(self._facts())})"

    def _repr_html_(self) -> str:
        """Show the answer in a notebook, with its quotes and what it took."""
        quotes = [f"“{quote.quote}” {_place(quote)}" for quote in self.evidence]
        facts = markup.note(" · ".join(self._facts()))
        return markup.block(markup.text(self.text), markup.items(quotes), facts)

    def _facts(self) -> list[str]:
        facts = [f"{self.turns} turns", f"{self.calls} calls", f"{self.seconds:.1f} s"]
        facts += [f"${self.cost:.4f}"] if self.cost is not None else []
        if self.ended is not Ended.ANSWERED:
            facts.append(f"{self.ended}: {self.reason}" if self.reason else str(self.ended))
        if self.unfound:
            facts.append(f"{len(self.unfound)} of {len(self.evidence)} quotes not in the context")
        return facts


def _place(quote: Evidence) -> str:
    if not quote.found:
        return "(not found in the context)"
    if quote.path is not None:
        return f"({quote.path}:{quote.line})" if quote.line is not None else f"({quote.path})"
    return f"(line {quote.line})" if quote.line is not None else "(found)"
