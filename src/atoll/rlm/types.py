"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll import markup
from atoll.rlm.models.types import Usage

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.explore.evidence import Evidence
    from atoll.explore.ledger import Coverage
    from atoll.rlm.trajectory.events import Event


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer:
    """The answer to a question, and how it was found. print() shows its text."""

    text: str
    value: Any = None
    """The answer as data, if the model gave more than text."""
    evidence: tuple[Evidence, ...] = ()
    coverage: Coverage | None = None
    """None if the model was shown the whole context."""
    way: str = "loop"
    """`loop`, or `direct` if the model was shown the whole context."""
    why: str = ""
    forced: bool = False
    """Whether a limit was reached; the answer is what was known by then."""
    cost: float | None = None
    """Dollars for all calls together; None if the price of one is not known."""
    usage: Usage = field(default_factory=Usage)
    calls: int = 0
    turns: int = 0
    seconds: float = 0.0
    trajectory: tuple[Event, ...] = ()
    trajectory_path: Path | None = None

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Answer({markup.short(self.text)}, {', '.join(self._facts())})"

    def _repr_html_(self) -> str:
        """Show the answer in a notebook, with its quotes and what it took."""
        quotes = [f"“{one.quote}” {_place(one)}" for one in self.evidence]
        facts = markup.note(" · ".join(self._facts()))
        return markup.block(markup.text(self.text), markup.items(quotes), facts)

    def _facts(self) -> list[str]:
        facts = [f"{self.turns} turns", f"{self.calls} calls", f"{self.seconds:.1f} s"]
        facts += [f"${self.cost:.4f}"] if self.cost is not None else []
        return [*facts, *(["forced by a limit"] if self.forced else [])]


def _place(quote: Evidence) -> str:
    if not quote.found:
        return "(not found in the context)"
    return f"(line {quote.line})" if quote.line is not None else "(found)"
