"""A turn and the final answer as data, and what a model is told of a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.guest.shared.values import MAX_REPR, Opaque
from atoll.text import markup
from atoll.text.toon import to_text

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.agent.environment.chains.turn import ChainReport
    from atoll.agent.environment.tools.invocations import Invocation
    from atoll.search.coverage import Coverage
    from atoll.search.evidence import Evidence
    from atoll.types import SandboxResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """A model's answer."""

    how: str
    """FINAL, FINAL_VAR, SUBMIT, or `answer` for the dict of that name."""
    value: Any
    """Text, plain data, or an Opaque for an object that is not plain data."""
    text: str
    evidence: tuple[Evidence, ...] = ()
    """The quotes that came with it, each looked up in the context."""
    coverage: Coverage
    """How much of the context had been searched, and shown to a model, by then."""

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """Show the answer in a notebook."""
        return markup.block(markup.text(self.text), markup.note(f"by {self.how}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One cell of a model: what the model is told, and what happened."""

    number: int
    observation: str
    """The text for the model: short, without secrets; `spilled` has all of it if it was cut."""
    result: SandboxResult
    code: str
    """The code that ran; typographic quotes are replaced if it did not parse with them."""
    final: Final | None = None
    """The answer, if one was given in this turn."""
    spilled: Path | None = None
    calls: tuple[Invocation, ...] = ()
    """The tool calls of this turn, in the order in which they ended."""
    chain: ChainReport | None = None
    """In structured mode: how the calls were run, or why they were refused."""

    def __str__(self) -> str:
        return self.observation

    def _repr_html_(self) -> str:
        """Show code, result and answer in a notebook."""
        final = "" if self.final is None else self.final._repr_html_()
        head = markup.note(f"turn {self.number}")
        return markup.block(head, markup.text(self.code), self.result._repr_html_(), final)


NOTHING, ANSWERED = "(no output)", "(the answer was given)"
LOST = "(the variables of earlier cells are lost)"
CUT_VALUE = """\
(the value of the last line is cut here: its repr has more than {most:,} characters. It is in `_`: \
print parts of it)"""
OPENINGS: dict[type, tuple[str, ...]] = {
    list: ("[",),
    tuple: ("(",),
    dict: ("{",),
    set: ("{", "set("),
    frozenset: ("frozenset(",),
}
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
    parts = [result.stdout.strip("\n"), _value_text(result, toon, whole), result.stderr.strip("\n")]
    if result.error and result.error not in result.stderr:
        parts.append(result.error)
    if result.state_lost:
        parts.append(LOST)
    if answered:
        parts.append(ANSWERED)
    if note:
        parts.append(note)
    text = "\n".join(filter(None, parts)) or NOTHING
    return text.encode("utf-8", "backslashreplace").decode()  # half a pair cannot be sent


def is_cut(result: SandboxResult) -> bool:
    """Return whether the result has only the beginning of the last value."""
    text, value = result.value_repr, result.value
    return text is not None and len(text) > MAX_REPR and isinstance(value, Opaque)


def _value_text(result: SandboxResult, toon: bool, whole: Any) -> str:  # noqa: FBT001 - as it is called
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
