"""A violation that a guard found, and the error text for a list of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ERROR_TYPE = "GuardError"
MAX_TOLD = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing that a guard refuses; the message says what to do instead."""

    line: int
    column: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}, {self.rule}: {self.message}"


def describe(violations: Sequence[Violation]) -> str:
    """Return the error text of refused code: a line for each violation, up to ten."""
    lines = [str(violation) for violation in violations[:MAX_TOLD]]
    if len(violations) > MAX_TOLD:
        lines.append(f"and {len(violations) - MAX_TOLD} more")
    return f"{ERROR_TYPE}: the code was refused and did not run: " + "\n".join(lines)
