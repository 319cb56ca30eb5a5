"""Whether a context is shown as it is or explored by code: below a size the loop only loses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.text.tokens import estimate

if TYPE_CHECKING:
    from atoll.explore.index import ContextIndex


@dataclass(frozen=True, slots=True)
class Plan:
    """`loop` or `direct`, and why."""

    way: str
    why: str


def plan(index: ContextIndex | None, documents: bool, threshold: int) -> Plan:  # noqa: FBT001
    """The way to take for a context, given the tokens below which it is shown."""
    if documents:
        return Plan("loop", "there are documents to look into")
    if index is None:
        return Plan("direct", "there is no context")
    if index.length > threshold * 8:
        return Plan("loop", f"{index.length:,} characters are more than {threshold:,} tokens")
    tokens = estimate(index.text(0, index.length))
    if tokens <= threshold:
        return Plan("direct", f"about {tokens:,} tokens fit into one question ({threshold:,})")
    return Plan("loop", f"about {tokens:,} tokens are more than {threshold:,}")
