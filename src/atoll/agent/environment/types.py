"""The result of a turn, and the final answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.text import markup

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
