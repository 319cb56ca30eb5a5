"""Validates and limits the fields of events: texts and plain data.

# SECURITY: models and guests choose most of these values, and a file may be forged. No value
# that these functions return is longer, deeper or of another type than its field allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT_CAP = 2_000
"""Characters of a text whose field has no cap of its own."""
DATA_CAP = 16_000
"""Characters in all texts and keys of one field of plain data."""
DEPTH_CAP, VALUE_CAP = 6, 2_000
NUMBER_CAP = 1e15
"""Largest plausible count of tokens, milliseconds or dollars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens that a model read, wrote, and had read before (a part of `input`)."""

    input: int = 0
    output: int = 0
    cached: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cached=self.cached + other.cached,
        )


def cut(text: str, cap: int) -> str:
    """Return the text, or its start and how much is missing: at most `cap`, and idempotent."""
    if len(text) <= cap:
        return text
    room = max(cap - len(_cut_mark(len(text))), 0)
    return (text[:room] + _cut_mark(len(text) - room))[:cap]


def _cut_mark(missing: int) -> str:
    return f"\n[cut: {missing:,} more characters]"


def clamp(value: float) -> float:
    """Return the number, limited to NUMBER_CAP; 0 for NaN."""
    if isinstance(value, float) and math.isnan(value):
        return 0.0
    return value if _is_number(value) else (NUMBER_CAP if value > 0 else -NUMBER_CAP)


def plain(value: Any, cap: int = DATA_CAP) -> Any:
    """Return the value as JSON data; parts that are too long or too deep are marked as cut."""
    return _Plain(cap).of(value, DEPTH_CAP)


def fits(kind: str, value: Any) -> bool:
    """Return whether a value that was read has the type of its field's annotation."""
    return any(_CHECKS[one](value) for one in kind.split(" | "))


class _Plain:
    """Walks a value with a budget of characters and of values."""

    def __init__(self, cap: int) -> None:
        self._characters, self._values = cap, VALUE_CAP

    def of(self, value: Any, depth: int) -> Any:
        self._values -= 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (int, float)):
            return value if _is_number(value) else "[cut: no plain number]"
        if isinstance(value, (Mapping, list, tuple)):
            return self._many(value, depth) if depth else "[cut: too deep]"
        return self._text(value if isinstance(value, str) else f"[a {type(value).__name__}]")

    def _many(self, value: Mapping[Any, Any] | list[Any] | tuple[Any, ...], depth: int) -> Any:
        if isinstance(value, Mapping):
            room = list(value.items())[: max(self._values, 0)]
            return {self._text(str(key)): self.of(one, depth - 1) for key, one in room}
        return [self.of(one, depth - 1) for one in value[: max(self._values, 0)]]

    def _text(self, text: str) -> str:
        kept = cut(text, max(self._characters, 0))
        self._characters -= len(kept)
        return kept


def _is_number(value: Any) -> bool:
    """Return whether it is a plausible number; compares only: an int may be too large for float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -NUMBER_CAP <= value <= NUMBER_CAP  # false for nan


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_dicts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(one, dict) for one in value)


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": _is_whole,
    "float": _is_number,
    "None": lambda value: value is None,
    "Data": lambda value: isinstance(value, dict),
    "tuple[Data, ...]": _is_dicts,
    "Usage": lambda value: isinstance(value, Usage),
}
