"""Whether a backend can run here, how strongly, with which limits: what `atoll doctor` prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.policy import Isolation


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """What a backend says of itself on this host."""

    usable: bool
    isolation: Isolation | None = None
    reason: str = ""
    """Why it is not usable, or not at its full strength."""
    hint: str = ""
    """What to do or to type."""
    limits: dict[str, str] = field(default_factory=dict)
    """Each limit, and by what it is enforced here."""
    details: dict[str, str] = field(default_factory=dict)
