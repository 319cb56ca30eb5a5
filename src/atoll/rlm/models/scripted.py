"""A model that says what it was told to say: for tests and examples, without any server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.errors import ModelRecordError
from atoll.rlm.models.dialects import Draft
from atoll.rlm.models.types import Completion, Message, Options, Usage, estimated_usage

if TYPE_CHECKING:
    from atoll.rlm.models.types import OnText

Reply = str | Completion | Callable[[Sequence[Message]], str | Completion] | Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request that was made."""

    messages: tuple[Message, ...]
    options: Options
    streamed: bool


class ScriptedModel:
    """A Model that gives `replies` in turn: a text, a function of the messages, or an error.

    A Completion instead of a text says how the reply ended, such as finish="length".

    With `forever`, the last reply is given again and again.
    """

    def __init__(
        self,
        replies: Sequence[Reply],
        *,
        name: str = "scripted/model",
        delay: float = 0.0,
        usd_per_call: float | None = 0.0,
        forever: bool = False,
    ) -> None:
        self.name = name
        self.asked: list[Asked] = []
        """Every request, in the order in which they were made."""
        self._replies = list(replies)
        self._delay, self._usd, self._forever = delay, usd_per_call, forever
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        """Replies that nobody has asked for yet."""
        return max(0, len(self._replies) - len(self.asked))

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        on_text: OnText | None = None,
    ) -> Completion:
        """The next reply, cut at the first stop."""
        started = time.monotonic()
        options = Options(max_tokens=max_tokens, temperature=temperature, stop=tuple(stop))
        reply = self._next(
            Asked(messages=tuple(messages), options=options, streamed=on_text is not None)
        )
        await asyncio.sleep(self._delay)
        if isinstance(reply, Exception):
            raise reply
        said = reply(messages) if callable(reply) else reply
        said = Completion(text=said) if isinstance(said, str) else said
        draft = Draft(on_text, stop)
        draft.finish = said.finish
        draft.add(said.text)
        text, finish = draft.end()
        return Completion(
            text=text,
            usage=estimated_usage(messages, text) if said.usage == Usage() else said.usage,
            usd=self._usd,
            model=self.name,
            finish=finish,
            duration_ms=(time.monotonic() - started) * 1000,
        )

    def would_cost(self, usage: Usage) -> float | None:  # noqa: ARG002 - the same for all
        """What every call costs."""
        return self._usd

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _next(self, asked: Asked) -> Reply:
        with self._lock:
            at = len(self.asked)
            self.asked.append(asked)
        if self._forever and self._replies:
            at = min(at, len(self._replies) - 1)
        if at >= len(self._replies):
            had = len(self._replies)
            raise ModelRecordError(f"{self.name} has {had} replies and was asked {at + 1} times")
        return self._replies[at]
