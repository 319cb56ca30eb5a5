"""Messages to a language model, its replies, and the interface of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict

from atoll.text import tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

Role = Literal["system", "user", "assistant"]
Finish = Literal["stop", "length", "other"]
OnText = Callable[[str], None]
TOKENS_PER_MESSAGE = 4


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens of a call; of several, when added."""

    input_tokens: int = 0
    """All of the prompt, from the cache or not."""
    output_tokens: int = 0
    """All that was generated, hidden reasoning included."""
    cached_tokens: int = 0
    """Of the input: tokens read from the provider's cache."""
    written_tokens: int = 0
    """Of the input: tokens written to the provider's cache."""
    estimated: bool = False
    """Whether any of this is a guess, as the server did not say."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            written_tokens=self.written_tokens + other.written_tokens,
            estimated=self.estimated or other.estimated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A model's answer."""

    text: str
    usage: Usage = field(default_factory=Usage)
    usd: float | None = None
    """What it cost; None: not priced."""
    model: str = ""
    finish: Finish = "stop"
    duration_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an answer is wanted."""

    max_tokens: int | None = None
    temperature: float | None = None
    stop: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: CallOptions) -> Options:
        """Return the options of a call that decide its answer."""
        stop = tuple(given.get("stop", ()))
        limit, temperature = given.get("max_tokens"), given.get("temperature")
        return cls(max_tokens=limit, temperature=temperature, stop=stop)


class CallOptions(TypedDict, total=False):
    """The options of Model.complete, as keyword arguments."""

    max_tokens: int | None
    temperature: float | None
    stop: Sequence[str]
    on_text: OnText | None


class Model(Protocol):
    """A language model. Calls may be made at the same time."""

    @property
    def name(self) -> str:
        """Provider and model, such as `openai/gpt-5`."""

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        on_text: OnText | None = None,
    ) -> Completion:
        """Return the answer to `messages`; with `on_text`, handed on piece by piece as it comes."""

    def would_cost(self, usage: Usage) -> float | None:
        """Return dollars that a call of this usage costs; None: not priced."""

    async def close(self) -> None:
        """Let go of connections and files. Nothing may be asked afterwards."""


def estimated_usage(messages: Sequence[Message], text: str) -> Usage:
    """Return a guess at the tokens of a call, where a server does not count them."""
    prompt = sum(tokens.estimate(message.content) + TOKENS_PER_MESSAGE for message in messages)
    return Usage(input_tokens=prompt, output_tokens=tokens.estimate(text), estimated=True)
