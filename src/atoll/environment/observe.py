"""What a model is told of a cell: what it printed, its last value, what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.guest.values import MAX_REPR, Opaque
from atoll.text.toon import to_text

if TYPE_CHECKING:
    from atoll.types import SandboxResult

NOTHING, ANSWERED = "(no output)", "(the answer was given)"
LOST = "(the variables of earlier cells are lost)"


def render(
    result: SandboxResult, *, toon: bool = True, answered: bool = False, note: str | None = None
) -> str:
    """All of it as one text, not yet cut."""
    parts = [result.stdout.strip("\n"), _value(result, toon), result.stderr.strip("\n")]
    if result.error and result.error not in result.stderr:
        parts.append(result.error)
    if result.state_lost:
        parts.append(LOST)
    if answered:
        parts.append(ANSWERED)
    if note:
        parts.append(note)
    text = "\n".join(part for part in parts if part) or NOTHING
    return text.encode("utf-8", "backslashreplace").decode()  # half a pair cannot be sent


def _value(result: SandboxResult, toon: bool) -> str:  # noqa: FBT001 - as it is called
    """The last expression's value: a text as itself, data in the shortest form."""
    text = result.value_repr
    if text is None:
        return ""
    if isinstance(result.value, str):
        return result.value
    if isinstance(result.value, Opaque) or not _is_structured(result.value):
        return text
    told = to_text(result.value, toon=toon)
    return told if len(text) >= MAX_REPR or len(told) < len(text) else text


def _is_structured(value: Any) -> bool:
    return isinstance(value, list | tuple | dict | set | frozenset)
