"""Calls of models on a run's account: the most a call can cost is held before, its cost is paid.

The events of calls and of sub-calls are emitted here.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from atoll.agent.rlm.budget import UNLIMITED
from atoll.agent.rlm.models.types import Usage
from atoll.agent.rlm.replies import without_thoughts
from atoll.agent.rlm.types import Ended
from atoll.agent.trajectory.events import (
    ModelAnswered,
    ModelAsked,
    Refused,
    SubcallEnded,
    SubcallStarted,
)
from atoll.agent.trajectory.events import Usage as UsageFields
from atoll.errors import ModelError, ModelReplyError, ModelTimeoutError
from atoll.text.tokens import estimate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from atoll.agent.rlm.budget import Account
    from atoll.agent.rlm.models.resolve import Models
    from atoll.agent.rlm.models.types import Completion, Message, Model
    from atoll.agent.rlm.types import RunResult
    from atoll.agent.trajectory.reader import TrajectoryWriter

MAX_TOKENS = 4096
LEAST_TOKENS = 16
"""An answer that may have fewer is not worth asking for."""
MARGIN = 1.25
"""An estimate of tokens may be short by so much."""
OVERHEAD = 8
"""Tokens that a message has beside its text."""
FREE_TOLD = 1_000
"""Sub-calls without a cost that a trajectory tells of: guest code can make them without end."""
UNTOLD = f"more than {FREE_TOLD:,} of them cost nothing: the others are not recorded"


class Concurrency:
    """Calls to models at one time, over all depths; and runs at one time, at each depth.

    A run waits for the runs below it, so each depth has places of its own: if they shared them,
    parents could hold all that their children wait for.
    """

    def __init__(self, most: int) -> None:
        self.calls = asyncio.Semaphore(most)
        self._runs: defaultdict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(most)
        )
        self._told = 0
        self.hushed = False
        """Whether the notice that events are left out was emitted."""

    def runs(self, depth: int) -> asyncio.Semaphore:
        """Return the places for runs at this depth."""
        return self._runs[depth]

    def may_tell(self, paid: int) -> bool:
        """Return whether a trajectory is told of one more sub-call, when so many were paid for."""
        if self._told >= paid + FREE_TOLD:
            return False
        self._told += 1
        return True


@dataclass(slots=True)
class Totals:
    """What a run and all beneath it has used so far."""

    usage: Usage = field(default_factory=Usage)
    usd: float | None = 0.0
    calls: int = 0

    def add(self, completion: Completion) -> None:
        """Add a call; the sum of dollars is unknown once the price of a call is."""
        self.usage += completion.usage
        self.calls += 1
        known = self.usd is not None and completion.usd is not None
        self.usd = round((self.usd or 0.0) + (completion.usd or 0.0), 9) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCalls:
    """The metered model client of one run; `parent` is the sub-call that the run belongs to."""

    models: Models
    account: Account
    writer: TrajectoryWriter
    concurrency: Concurrency
    totals: Totals = field(default_factory=Totals)
    parent: str | None = None
    depth: int = 0
    above: ModelCalls | None = None
    temperature: float | None = None
    sent: list[Message] = field(default_factory=list)
    """The messages of the last call: a trajectory has only what is new in the next."""

    @property
    def root(self) -> ModelCalls:
        """The run that all of this is beneath."""
        return self if self.above is None else self.above.root

    async def ask(
        self, model: Model, messages: Sequence[Message], max_tokens: int = MAX_TOKENS
    ) -> Completion:
        """Return a model's reply, without reasoning in tags at its beginning.

        Raise BudgetError if it cannot be paid for or does not come in time.
        """
        call = self.writer.new_call()
        self.account.check("calls", "seconds")
        left = self.account.left("seconds")
        try:
            async with asyncio.timeout(None if left == UNLIMITED else left) as timer:
                async with self.concurrency.calls:
                    completion = await self._paid(model, messages, call, max_tokens)
        except TimeoutError:
            if not timer.expired():
                raise
            self.account.refuse("seconds")
        calls: ModelCalls | None = self
        while calls is not None:
            calls.totals.add(completion)
            calls = calls.above
        self.writer.emit(
            ModelAnswered(
                parent=self.parent,
                depth=self.depth,
                call=call,
                text=completion.text,
                usage=usage_fields(completion.usage),
                usd=completion.usd,
                duration_ms=completion.duration_ms,
            )
        )
        return replace(completion, text=without_thoughts(completion.text))

    async def _paid(
        self, model: Model, messages: Sequence[Message], call: str, max_tokens: int
    ) -> Completion:
        """Return the reply, and settle its cost; a call that was cut short may have cost it all."""
        prompt = prompt_tokens(messages)
        room = await self._room(model, prompt, max_tokens)
        most = would_cost(model, prompt, room)
        with self.account.call(usd=most, tokens=prompt + room) as bill:
            self._tell_asked(model, messages, call, prompt)
            try:
                completion = await model.complete(
                    messages, max_tokens=room, temperature=self.temperature
                )
            except ModelError as exc:
                if not isinstance(exc, ModelTimeoutError | ModelReplyError):
                    bill.usd, bill.tokens = 0.0, 0
                raise
            bill.usd = most if completion.usd is None else completion.usd
            bill.tokens = completion.usage.input_tokens + completion.usage.output_tokens
        return completion

    async def _room(self, model: Model, prompt: int, most: int) -> int:
        """Return how long an answer can be paid for.

        Calls under way mostly cost less than was set aside for them: they are waited for as long as
        that could make it longer.
        """
        while True:
            now = self._affordable(model, prompt, most, settled=False)
            then = self._affordable(model, prompt, most, settled=True)
            if now >= then:
                break
            await self.account.settlement()
            self.account.check("calls")
        if now < min(LEAST_TOKENS, most):
            tokens = self.account.left("tokens")
            self.account.refuse("tokens" if tokens - prompt < LEAST_TOKENS else "usd")
        return now

    def _affordable(self, model: Model, prompt: int, most: int, *, settled: bool) -> int:
        tokens = self.account.left("tokens", settled=settled)
        usd = self.account.left("usd", settled=settled)
        base = would_cost(model, prompt, 0)
        each = (would_cost(model, prompt, 1000) - base) / 1000
        room = min(most, tokens - prompt)
        if each > 0:
            room = min(room, (usd - base) / each)
        return max(0, int(room)) if base <= usd else 0

    def _tell_asked(
        self, model: Model, messages: Sequence[Message], call: str, prompt: int
    ) -> None:
        repeated = 0
        for old, new in zip(self.sent, messages, strict=False):
            if old != new:
                break
            repeated += 1
        self.sent[:] = messages
        self.writer.emit(
            ModelAsked(
                parent=self.parent,
                depth=self.depth,
                call=call,
                model=model.name,
                messages_count=len(messages),
                input_tokens=prompt,
                repeated=repeated,
                messages=tuple(
                    [{"role": sent.role, "content": sent.content} for sent in messages[repeated:]]
                ),
            )
        )


@dataclass(frozen=True, slots=True)
class SubcallEvents:
    """The events of one sub-call that is made in the loop of `calls`."""

    calls: ModelCalls
    call: str
    quiet: bool = False

    @classmethod
    def of(cls, calls: ModelCalls, **facts: Any) -> SubcallEvents:
        """Emit the start of a new call; once too many cost nothing, no more events are emitted."""
        shared, call = calls.concurrency, calls.writer.new_call()
        metered = cls(calls, call, quiet=not shared.may_tell(calls.root.totals.calls))
        if not metered.quiet:
            calls.writer.emit(SubcallStarted(call=call, **metered._place, **facts))
        elif not shared.hushed:
            shared.hushed = True
            calls.writer.emit(Refused(what="telling of sub-calls", why=UNTOLD))
        return metered

    async def end(
        self, work: Awaitable[RunResult], totals: Totals, *, downgraded: bool = False
    ) -> RunResult:
        """Return what `work` gives, and emit how it ended and what it used."""
        answer, ended, error = "", Ended.UNANSWERED, None
        try:
            ending = await work
            answer, ended = ending.text, ending.ended
        except asyncio.CancelledError:
            error = "cancelled"
            raise
        except Exception as exc:
            error = f"{type(exc).__name__}: {exc}"
            raise
        else:
            return ending
        finally:
            if not self.quiet:
                self.calls.writer.emit(
                    SubcallEnded(
                        call=self.call,
                        answer=answer,
                        ended=ended.value,
                        error=error,
                        usage=usage_fields(totals.usage),
                        usd=totals.usd,
                        downgraded=downgraded,
                        **self._place,
                    )
                )

    @property
    def _place(self) -> dict[str, Any]:
        return {"parent": self.calls.parent, "depth": self.calls.depth}


def usage_fields(usage: Usage) -> UsageFields:
    """Return a usage as trajectories keep it."""
    return UsageFields(
        input=usage.input_tokens, output=usage.output_tokens, cached=usage.cached_tokens
    )


def would_cost(model: Model, prompt: int, answer: int) -> float:
    """Return the most that a call can cost; 0 for a model without a price."""
    return model.would_cost(Usage(input_tokens=prompt, output_tokens=answer)) or 0.0


def prompt_tokens(messages: Sequence[Message]) -> int:
    """Return the most tokens that messages can have, by an estimate with a margin."""
    return int(sum(estimate(message.content) + OVERHEAD for message in messages) * MARGIN)
