"""What a turn gives back, and what a final answer is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.explore.evidence import Evidence
    from atoll.explore.ledger import Coverage
    from atoll.types import SandboxResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """A model's answer, however it gave it."""

    how: str
    """FINAL, FINAL_VAR, SUBMIT, or `answer` for the dict of that name."""
    value: Any
    """As it came: text, plain data, or an Opaque where it had no plain form."""
    text: str
    evidence: tuple[Evidence, ...] = ()
    """The quotes that came with it, each looked up in the context."""
    coverage: Coverage
    """How much of the context had been scanned, and shown to a model, by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One cell of a model's: what it is to be told, and what happened."""

    number: int
    observation: str
    """For the model: short, without secrets; the whole is in `spilled` if it was cut."""
    result: SandboxResult
    code: str
    """What ran: the model's own code unless it only parsed with plain characters."""
    final: Final | None = None
    """The answer, if one was given in this turn."""
    spilled: Path | None = None
