"""What strategies have in common: the task, what is known of it, the price, and the outcome.

planner ─ order, prices ─▶ direct │ lookup │ scan │ explore
                              answered ◀─┤ └─ handed over, with what it learned ─▶ the next one
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from atoll.agent.rlm.models.types import TOKENS_PER_MESSAGE, Message, Usage
from atoll.text.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atoll.agent.rlm.model_calls import ModelCalls
    from atoll.agent.rlm.models.types import Completion
    from atoll.agent.rlm.types import RunResult
    from atoll.agent.strategies.passages import Passage
    from atoll.agent.strategies.question import Asked
    from atoll.search.coverage import CoverageLog
    from atoll.search.index import ContextIndex

MESSAGES = 2
TOKENS_PER_SECOND, TOKENS_READ_PER_SECOND = 9.0, 26.0
"""Of a model on this machine; a provider's is faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a strategy is expected to take; `usd` is None if the model has no price."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float | None = 0.0
    most_calls: int = 0
    """Calls if what is found has to be followed up; the other numbers are without that."""

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.tokens_in + self.tokens_out

    @property
    def seconds(self) -> float:
        """Seconds on a machine without a GPU; a guess."""
        return self.tokens_in / TOKENS_READ_PER_SECOND + self.tokens_out / TOKENS_PER_SECOND

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, without dollars: a run that is replayed costs none."""
        names = ("calls", "most_calls", "tokens_in", "tokens_out")
        return {**{name: getattr(self, name) for name in names}, "seconds": round(self.seconds, 1)}


@dataclass(slots=True)
class Known:
    """What strategies have learned so far; the next one begins with it."""

    passages: list[Passage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Why a strategy did not answer, one sentence each."""

    def prompt(self) -> str:
        """Return the passages for the model of the next strategy; "" if there are none."""
        if not self.passages:
            return ""
        lines = "\n".join(passage.shown for passage in self.passages)
        return f"A search for words of the question found:\n{quoted('found', lines)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question over a context, with the model and the budget to answer it."""

    question: str
    asked: Asked
    index: ContextIndex | None
    calls: ModelCalls
    ledger: CoverageLog
    """What was searched, and what a model was shown, whichever strategy did it."""
    max_tokens: int
    """Of one reply."""
    clean: Callable[[str], str] = str
    """Takes secrets out of what a model is shown."""
    data: Any = None
    """The context, if it is data: the index shows it as JSON."""

    made: dict[str, Any] = field(default_factory=dict)

    async def prepared(self, name: str, make: Callable[[Task], Any]) -> Any:
        """Return what `make` returns for this task, in a thread; made once, for price and run."""
        if name not in self.made:
            self.made[name] = await asyncio.to_thread(make, self)
        return self.made[name]

    async def ask(self, system: str, user: str, max_tokens: int) -> str:
        """Return the model's reply to one message; BudgetError if it cannot be paid for."""
        messages = [Message("system", system), Message("user", self.clean(user))]
        return (await self.complete(messages, min(max_tokens, self.max_tokens))).text.strip()

    async def complete(self, messages: Sequence[Message], max_tokens: int) -> Completion:
        """Return the model's reply to a conversation, on the run's account."""
        calls = self.calls
        model = calls.models.at(calls.depth)
        return await calls.ask(model, messages, max_tokens)

    def price(self, prompt: int, reply: int, *, calls: int = 1, most_calls: int = 1) -> Price:
        """Return the price of calls with so many tokens in the prompt and in the reply of each."""
        read = calls * (prompt + MESSAGES * TOKENS_PER_MESSAGE)
        usage = Usage(input_tokens=read, output_tokens=calls * reply)
        return Price(
            calls=calls,
            tokens_in=read,
            tokens_out=calls * reply,
            usd=self.calls.models.at(self.calls.depth).would_cost(usage),
            most_calls=max(calls, most_calls),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An answer with its evidence, or, without a result, a hand-over to the next strategy."""

    result: RunResult | None = None
    why: str = ""
    """Why there is not an answer."""

    @property
    def answered(self) -> bool:
        """Whether the question needs no other strategy."""
        return self.result is not None


class Strategy(Protocol):
    """One way to answer a question."""

    name: str

    async def price(self, task: Task, *, quick: bool = False) -> Price | None:
        """Return what it would take, without asking a model; None if it does not fit the task.

        `quick`: without a search either, so that it is a guess.
        """

    async def run(self, task: Task, known: Known) -> Outcome:
        """Answer the question, or add what was learned to `known`, and hand over."""
