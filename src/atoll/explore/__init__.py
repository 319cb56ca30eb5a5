"""Explores a large context by code: search, line numbers, quotes, and a record of what was seen."""

from atoll.explore.evidence import Evidence, check
from atoll.explore.grep import Grep, Hit
from atoll.explore.index import ContextIndex
from atoll.explore.ledger import Coverage, Ledger
from atoll.explore.sections import Section
from atoll.explore.spans_shown import Shown

__all__ = [
    "ContextIndex",
    "Coverage",
    "Evidence",
    "Grep",
    "Hit",
    "Ledger",
    "Section",
    "Shown",
    "check",
]
