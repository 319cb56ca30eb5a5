"""Asks models on a run's account: what a call can cost is set aside before, what it did is paid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.rlm.budget import BudgetError
from atoll.rlm.models.types import Usage
from atoll.rlm.trajectory.events import ModelAnswered, ModelAsked
from atoll.rlm.trajectory.fields import Usage as Told
from atoll.text.tokens import estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.rlm.budget import Account
    from atoll.rlm.models.types import Completion, Message, Model
    from atoll.rlm.trajectory.writer import TrajectoryWriter

MAX_TOKENS = 4096
LEAST_TOKENS = 16
"""An answer that may have fewer is not worth asking for."""
MARGIN = 1.25
"""An estimate of tokens may be short by so much."""
OVERHEAD = 8
"""Tokens that a message has beside its text."""


@dataclass(slots=True)
class Totals:
    """What a run and all beneath it has used so far."""

    usage: Usage = field(default_factory=Usage)
    usd: float | None = 0.0
    calls: int = 0

    def add(self, completion: Completion) -> None:
        """One more call. Dollars are not known any more once one call's are not."""
        self.usage += completion.usage
        self.calls += 1
        known = self.usd is not None and completion.usd is not None
        self.usd = (self.usd or 0.0) + (completion.usd or 0.0) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """One run's way to its models; `parent` is the sub-call that the run is, if it is one."""

    account: Account
    writer: TrajectoryWriter
    totals: Totals = field(default_factory=Totals)
    parent: str | None = None
    depth: int = 0
    above: Asker | None = None
    temperature: float | None = None

    async def ask(
        self, model: Model, messages: Sequence[Message], call: str, max_tokens: int = MAX_TOKENS
    ) -> Completion:
        """A model's answer; BudgetError if it cannot be paid for."""
        prompt = int(sum(estimate(one.content) + OVERHEAD for one in messages) * MARGIN)
        room = self._room(model, prompt, max_tokens)
        most = _cost(model, prompt, room)
        with self.account.call(usd=most, tokens=prompt + room) as bill:
            self._tell_asked(model, messages, call, prompt)
            completion = await model.complete(
                messages, max_tokens=room, temperature=self.temperature
            )
            bill.usd = completion.usd or 0.0
            bill.tokens = completion.usage.input_tokens + completion.usage.output_tokens
        self._count(completion)
        self._tell_answered(completion, call)
        return completion

    def _room(self, model: Model, prompt: int, max_tokens: int) -> int:
        """How long an answer can be paid for."""
        tokens, usd = self.account.left("tokens"), self.account.left("usd")
        room = int(min(max_tokens, tokens - prompt))
        each = (_cost(model, prompt, 1000) - _cost(model, prompt, 0)) / 1000
        if each > 0:
            room = int(min(room, (usd - _cost(model, prompt, 0)) / each))
        if room < min(LEAST_TOKENS, max_tokens):
            what = "tokens" if tokens - prompt < LEAST_TOKENS else "usd"
            limit = getattr(self.account.budget, what) or 0
            raise BudgetError(what, limit - self.account.left(what), limit)
        return room

    def _count(self, completion: Completion) -> None:
        asker: Asker | None = self
        while asker is not None:
            asker.totals.add(completion)
            asker = asker.above

    def _tell_asked(
        self, model: Model, messages: Sequence[Message], call: str, prompt: int
    ) -> None:
        self.writer.emit(
            ModelAsked(
                parent=self.parent,
                depth=self.depth,
                call=call,
                model=model.name,
                messages_count=len(messages),
                input_tokens=prompt,
            )
        )

    def _tell_answered(self, completion: Completion, call: str) -> None:
        self.writer.emit(
            ModelAnswered(
                parent=self.parent,
                depth=self.depth,
                call=call,
                text=completion.text,
                usage=told(completion.usage),
                usd=completion.usd,
                duration_ms=completion.duration_ms,
            )
        )


def told(usage: Usage) -> Told:
    """A usage as trajectories keep it."""
    return Told(input=usage.input_tokens, output=usage.output_tokens, cached=usage.cached_tokens)


def _cost(model: Model, prompt: int, answer: int) -> float:
    """The most that a call can cost; nothing is known of a model without a price."""
    return model.would_cost(Usage(input_tokens=prompt, output_tokens=answer)) or 0.0
