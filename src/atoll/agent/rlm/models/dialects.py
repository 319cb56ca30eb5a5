"""How each kind of server is asked, and how its answers are read: OpenAI's way and Anthropic's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from atoll.agent.rlm.models.types import Usage
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.agent.rlm.models.types import Finish, Message, OnText, Options

OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com"
ANTHROPIC_VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 32_000
"""Anthropic requires the field, and hidden reasoning counts."""
_NEW, _OLD = "max_completion_tokens", "max_tokens"
_MAX_STOPS = 4
_CACHED = {"cache_control": {"type": "ephemeral"}}
_FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
_MAX_TOKENS = 1_000_000_000


class Draft:
    """What a dialect reads an answer into."""

    def __init__(self, on_text: OnText | None = None, stop: Sequence[str] = ()) -> None:
        self.finish: Finish | None = None
        """Set as soon as the server has said how it ended: all of the text is there then."""
        self.counts: dict[str, Any] = {}
        """What the server said of tokens, in its own words."""
        self.handed = 0
        """Characters that `on_text` has been given: they cannot be taken back."""
        self._on_text = on_text
        self._stop = [text for text in stop if text]
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""
        self._stopped = False
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        """Add the next piece; what may be the beginning of a stop text is held back."""
        if self._stopped or not text:
            return
        self._held += plain(text)
        places = [at for text in self._stop if (at := self._held.find(text)) >= 0]
        if places:
            self._stopped = True
            self._hand(min(places))
            self._held = ""
        else:
            self._hand(max(0, len(self._held) - max(0, self._longest - 1)))

    @property
    def has_text(self) -> bool:
        """Whether any text has come."""
        return bool(self._parts or self._held or self._stopped)

    def end(self) -> tuple[str, Finish]:
        """Return the whole text, and how it ended."""
        self._hand(len(self._held))
        return "".join(self._parts), "stop" if self._stopped else self.finish or "other"

    def _hand(self, length: int) -> None:
        piece, self._held = self._held[:length], self._held[length:]
        if not piece:
            return
        self._parts.append(piece)
        if self._on_text is not None:
            self.handed += len(piece)
            self._on_text(piece)


class Dialect(Protocol):
    """How one kind of server is asked, and how its answers are read."""

    path: str
    """Of the endpoint, below the base URL."""
    key_variable: str

    def headers(self, key: str | None) -> dict[str, str]:
        """Who asks."""

    def body(
        self,
        model: str,
        messages: Sequence[Message],
        options: Options,
        *,
        stream: bool,
        without: frozenset[str],
    ) -> dict[str, object]:
        """Return the request, without the fields that the server was found not to take."""

    def read(self, said: Mapping[str, Any], draft: Draft) -> bool:
        """Read a whole answer, or one event of it; return whether it is the last one."""

    def usage(self, counts: Mapping[str, Any]) -> Usage | None:
        """Return what the server said of tokens; None: nothing."""


class OpenAI:
    """OpenAI's chat completions, which vLLM, llama.cpp and many others speak as well.

    `official`: the provider itself, whose newer models want newer words.
    """

    path = "/chat/completions"

    def __init__(self, *, key_variable: str = "OPENAI_API_KEY", official: bool = True) -> None:
        self.key_variable = key_variable
        self._limit, self._other_limit = (_NEW, _OLD) if official else (_OLD, _NEW)

    def headers(self, key: str | None) -> dict[str, str]:
        """Who asks."""
        return {"authorization": f"Bearer {key}"} if key else {}

    def body(
        self,
        model: str,
        messages: Sequence[Message],
        options: Options,
        *,
        stream: bool,
        without: frozenset[str],
    ) -> dict[str, object]:
        """Return the request."""
        limit = self._other_limit if self._limit in without else self._limit
        said = [{"role": message.role, "content": plain(message.content)} for message in messages]
        body = {
            "model": model,
            "messages": said,
            limit: options.max_tokens,
            "temperature": options.temperature,
            "stop": [plain(text) for text in options.stop[:_MAX_STOPS]] or None,
            "stream": stream or None,
            "stream_options": {"include_usage": True} if stream else None,
        }
        return {k: v for k, v in body.items() if v is not None and k not in without}

    def read(self, said: Mapping[str, Any], draft: Draft) -> bool:
        """Read a whole answer, which has a message, or an event with its next piece."""
        choices = said.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        message = part(choice, "message") or part(choice, "delta")
        draft.add(text_of(message.get("content")) or text_of(message.get("refusal")))
        draft.counts.update(part(said, "usage"))
        if isinstance(choice, dict):
            draft.finish = finish_of(choice.get("finish_reason")) or draft.finish
        return False  # usage comes after the last piece, and then the end

    def usage(self, counts: Mapping[str, Any]) -> Usage | None:
        """Return the tokens; the prompt's count has the cached ones in it."""
        if "prompt_tokens" not in counts or "completion_tokens" not in counts:
            return None
        details = part(counts, "prompt_tokens_details")
        return Usage(
            input_tokens=count(counts, "prompt_tokens"),
            output_tokens=count(counts, "completion_tokens"),
            cached_tokens=count(details, "cached_tokens"),
            written_tokens=count(details, "cache_write_tokens"),
        )


class Anthropic:
    """Anthropic's messages, which llama.cpp speaks as well."""

    path = "/v1/messages"
    key_variable = "ANTHROPIC_API_KEY"

    def headers(self, key: str | None) -> dict[str, str]:
        """Who asks, and by which version of the rules."""
        return {"anthropic-version": ANTHROPIC_VERSION} | ({"x-api-key": key} if key else {})

    def body(
        self,
        model: str,
        messages: Sequence[Message],
        options: Options,
        *,
        stream: bool,
        without: frozenset[str],
    ) -> dict[str, object]:
        """Return the request."""
        mark = {} if "cache_control" in without else _CACHED
        system = "\n\n".join(message.content for message in messages if message.role == "system")
        stops = [plain(text) for text in options.stop if text.strip()]  # others are refused
        body = {
            "model": model,
            "max_tokens": options.max_tokens or DEFAULT_MAX_TOKENS,
            "system": [_text(system) | mark] if system else None,
            "messages": _turns(messages, mark),
            "temperature": options.temperature,
            "stop_sequences": stops or None,
            "stream": stream or None,
        }
        return {k: v for k, v in body.items() if v is not None and k not in without}

    def read(self, said: Mapping[str, Any], draft: Draft) -> bool:
        """Read a whole message, or one event of it; unknown events are ignored."""
        kind = said.get("type")
        if kind == "content_block_delta":
            delta = part(said, "delta")
            draft.add(text_of([{"type": "text", "text": delta.get("text")}]))
        elif kind == "message":
            draft.add(text_of(said.get("content")))
        whole = part(said, "message") if kind == "message_start" else said
        draft.counts.update({k: v for k, v in part(whole, "usage").items() if v is not None})
        ended = said.get("stop_reason") or part(said, "delta").get("stop_reason")
        draft.finish = finish_of(ended) or draft.finish
        return kind == "message_stop"

    def usage(self, counts: Mapping[str, Any]) -> Usage | None:
        """Return the tokens; the prompt's count lacks the cached ones, which are added."""
        if "input_tokens" not in counts or "output_tokens" not in counts:
            return None
        cached = count(counts, "cache_read_input_tokens")
        written = count(counts, "cache_creation_input_tokens")
        return Usage(
            input_tokens=count(counts, "input_tokens") + cached + written,
            output_tokens=count(counts, "output_tokens"),
            cached_tokens=cached,
            written_tokens=written,
        )


def _turns(messages: Sequence[Message], mark: Mapping[str, Any]) -> list[dict[str, Any]]:
    """User and assistant in turn. A conversation that goes on is cached up to here.

    The first question is not: most of them are asked once, and writing to the cache is paid for.
    """
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system" or not message.content.strip():  # an empty text is refused
            continue
        if turns and turns[-1]["role"] == message.role:
            turns[-1]["content"].append(_text(message.content))
        else:
            turns.append({"role": message.role, "content": [_text(message.content)]})
    if not turns or turns[0]["role"] != "user":
        raise ConfigError("the first message after those of the system must be the user's")
    if len(turns) > 1:
        turns[-1]["content"][-1] |= mark
    return turns


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": plain(text)}


def finish_of(reason: object) -> Finish | None:
    """Return how an answer ended, in the same words for all servers; None if it has not."""
    return _FINISHES.get(reason, "other") if isinstance(reason, str) else None


def count(counts: Mapping[str, Any], name: str) -> int:
    """Return a number of tokens that a server gave; 0 for any other value."""
    value = counts.get(name)
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else 0


def part(value: Any, name: str) -> Mapping[str, Any]:
    """Return a field that should be an object; empty where it is not."""
    result = value.get(name) if isinstance(value, dict) else None
    return result if isinstance(result, dict) else {}


def text_of(content: Any) -> str:
    """Return the text of a message's content: a string, or parts of which some are text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [
        part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"
    ]
    return "".join(text for text in texts if isinstance(text, str))


def plain(text: str) -> str:
    """Return the text with lone surrogates, which UTF-8 cannot encode, as `?`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
