"""A function as a model: sync or async, a text or messages in, a text or a Completion out."""

from __future__ import annotations

import asyncio
import inspect
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atoll.bridge import HandlerEndedError, await_handler, run_handler
from atoll.errors import ModelReplyError
from atoll.rlm.models.types import Completion, Usage, estimated_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atoll.rlm.models.types import Message, OnText

TEXT_NAMES = frozenset({"prompt", "text", "question", "query", "message"})
"""Names of a first parameter that takes a text, if it has no annotation."""


class FunctionModel:
    """A Model that is a function of the caller's.

    A function whose first parameter is annotated as `str`, or is called `prompt` or the like, gets
    the conversation as one text. Another gets the list of messages.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.name = name or f"function/{getattr(function, '__name__', type(function).__name__)}"
        self._function, self._takes_text = function, _takes_text(function)

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,  # noqa: ARG002 - a function has its own limits
        temperature: float | None = None,  # noqa: ARG002
        stop: Sequence[str] = (),  # noqa: ARG002
        on_text: OnText | None = None,
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
        if on_text is not None and said.text:
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
    return "\n\n".join(f"[{one.role}]\n{one.content}" for one in messages)


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
