"""What a run gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.rlm.models.types import Usage

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.explore.evidence import Evidence
    from atoll.explore.ledger import Coverage
    from atoll.rlm.trajectory.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a question, and how it came about."""

    text: str
    value: Any = None
    """As the model gave it, where that was more than text."""
    evidence: tuple[Evidence, ...] = ()
    coverage: Coverage | None = None
    """None where the model was shown the whole context."""
    way: str = "loop"
    """`loop`, or `direct` for a context that was shown as it is."""
    why: str = ""
    forced: bool = False
    """Whether a limit was reached, and this is what was known by then."""
    cost: float | None = None
    """Dollars, of all calls together; None if one of them is not priced."""
    usage: Usage = field(default_factory=Usage)
    calls: int = 0
    turns: int = 0
    seconds: float = 0.0
    trajectory: tuple[Event, ...] = ()
    trajectory_path: Path | None = None
