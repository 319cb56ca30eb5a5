"""Models without a server: a function of the caller, and a script of replies."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from atoll.agent.rlm.models.dialects import Draft
from atoll.agent.rlm.models.types import Completion, Message, Options, Usage, estimated_usage
from atoll.concurrency import forks
from atoll.errors import ModelRecordError, ModelReplyError
from atoll.sandbox.bridge import HandlerEndedError, await_handler, run_handler

if TYPE_CHECKING:
    from atoll.agent.rlm.models.types import CallOptions

Reply = str | Completion | Callable[[Sequence[Message]], str | Completion] | Exception
TEXT_NAMES = frozenset({"prompt", "text", "question", "query", "message"})
"""Names of a first parameter that takes a text, if it has no annotation."""


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
        self._lock = forks.new_lock()

    @property
    def left(self) -> int:
        """Replies that were not asked for yet."""
        return max(0, len(self._replies) - len(self.asked))

    async def complete(
        self, messages: Sequence[Message], **options: Unpack[CallOptions]
    ) -> Completion:
        """Return the next reply, cut at the first stop."""
        started = time.monotonic()
        on_text, wanted = options.get("on_text"), Options.of(options)
        reply = self._next(
            Asked(messages=tuple(messages), options=wanted, streamed=on_text is not None)
        )
        await asyncio.sleep(self._delay)
        if isinstance(reply, Exception):
            raise reply
        said = reply(messages) if callable(reply) else reply
        said = Completion(text=said) if isinstance(said, str) else said
        draft = Draft(on_text, wanted.stop)
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
        """Return what every call costs."""
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


class FunctionModel:
    """A Model that is a function of the caller's.

    A function whose first parameter is annotated as `str`, or is called `prompt` or the like, gets
    the conversation as one text. Another gets the list of messages.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.name = name or f"function/{getattr(function, '__name__', type(function).__name__)}"
        self._function, self._takes_text = function, _takes_text(function)

    async def complete(
        self, messages: Sequence[Message], **options: Unpack[CallOptions]
    ) -> Completion:
        """Return what the function returns."""
        started = time.monotonic()
        given = as_text(messages) if self._takes_text else list(messages)
        try:
            said = await self._call(given)
        except HandlerEndedError as exc:
            raise ModelReplyError(f"{self.name} raised {exc.kind}: {exc}") from exc
        if isinstance(said, str):
            said = Completion(text=said)
        if not isinstance(said, Completion):
            kind = type(said).__name__
            raise ModelReplyError(f"{self.name} returned {kind}: return a str or a Completion")
        if (on_text := options.get("on_text")) is not None and said.text:
            on_text(said.text)
        usage = estimated_usage(messages, said.text) if said.usage == Usage() else said.usage
        took = (time.monotonic() - started) * 1000
        return replace(said, usage=usage, model=said.model or self.name, duration_ms=took)

    async def _call(self, given: Any) -> Any:
        if inspect.iscoroutinefunction(self._function):
            return await await_handler(self._function(given))
        said = await asyncio.to_thread(run_handler, self._function, (given,), {})
        return await await_handler(said) if inspect.isawaitable(said) else said

    def would_cost(self, usage: Usage) -> float | None:  # noqa: ARG002 - nothing is known of it
        """Return None: the price is not known."""
        return None

    async def close(self) -> None:
        """Do nothing: the function is the caller's."""


def as_text(messages: Sequence[Message]) -> str:
    """Return a conversation as one text; a single message as it is."""
    if len(messages) == 1:
        return messages[0].content
    return "\n\n".join(f"[{message.role}]\n{message.content}" for message in messages)


def _takes_text(function: Callable[..., Any]) -> bool:
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):
        return False
    if first is None:
        return False
    if first.annotation is not first.empty:
        return first.annotation in (str, "str")
    return first.name in TEXT_NAMES
