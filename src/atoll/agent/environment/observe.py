"""What a model is told of a cell: what it printed, its last value, what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.guest.shared.values import MAX_REPR, Opaque
from atoll.text.toon import to_text

if TYPE_CHECKING:
    from atoll.types import SandboxResult

NOTHING, ANSWERED = "(no output)", "(the answer was given)"
LOST = "(the variables of earlier cells are lost)"
CUT_VALUE = """\
(the value of the last line is cut here: its repr has more than {most:,} characters. It is in `_`: \
print parts of it)"""
OPENINGS: dict[type, tuple[str, ...]] = {
    list: ("[",), tuple: ("(",), dict: ("{",), set: ("{", "set("), frozenset: ("frozenset(",),
}  # fmt: skip
"""How the repr of plain data begins. Another one is that of a type with its own way to be shown."""
NO_OPENING = "\0"
CONTAINERS = tuple(OPENINGS)


def render(
    result: SandboxResult,
    *,
    toon: bool = True,
    answered: bool = False,
    note: str | None = None,
    whole: Any = None,
) -> str:
    """Return all of it as one text, not yet cut; `whole` is the last value if it was too large."""
    parts = [result.stdout.strip("\n"), _value(result, toon, whole), result.stderr.strip("\n")]
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


def is_cut(result: SandboxResult) -> bool:
    """Return whether the result has only the beginning of the last value."""
    text, value = result.value_repr, result.value
    return text is not None and len(text) > MAX_REPR and isinstance(value, Opaque)


def _value(result: SandboxResult, toon: bool, whole: Any) -> str:  # noqa: FBT001 - as it is called
    """Return the last expression's value: a text as itself, data in the shortest form."""
    text = result.value_repr
    if text is None:
        return ""
    value = result.value if whole is None else whole
    if isinstance(value, str):
        return value
    if isinstance(value, bytes) and len(text) > MAX_REPR:
        return repr(value)
    is_own = not text.startswith(OPENINGS.get(type(value), NO_OPENING))
    if is_own and len(text) <= MAX_REPR:
        return text
    if is_own and not isinstance(value, CONTAINERS):
        return f"{text}\n{CUT_VALUE.format(most=MAX_REPR)}"
    told = to_text(value, toon=toon)
    return told if len(text) >= MAX_REPR or len(told) < len(text) else text
