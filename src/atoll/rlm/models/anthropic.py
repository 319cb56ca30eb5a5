"""Anthropic's messages, which llama.cpp speaks as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.rlm.models.dialect import count, finish_of, part, text_of
from atoll.rlm.models.draft import plain
from atoll.rlm.models.types import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.rlm.models.draft import Draft
    from atoll.rlm.models.types import Message, Options

OFFICIAL = "https://api.anthropic.com"
VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 32_000
"""The field is required, and hidden reasoning counts."""
_CACHED = {"cache_control": {"type": "ephemeral"}}


class Anthropic:
    """The dialect."""

    path = "/v1/messages"
    key_variable = "ANTHROPIC_API_KEY"

    def headers(self, key: str | None) -> dict[str, str]:
        """Who asks, and by which version of the rules."""
        return {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})

    def body(
        self,
        model: str,
        messages: Sequence[Message],
        options: Options,
        *,
        stream: bool,
        without: frozenset[str],
    ) -> dict[str, Any]:
        """The request."""
        mark = {} if "cache_control" in without else _CACHED
        system = "\n\n".join(one.content for one in messages if one.role == "system")
        stops = [plain(one) for one in options.stop if one.strip()]  # others are refused
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

    def read(self, said: dict[str, Any], draft: Draft) -> bool:
        """A whole message, or one event of it. Events that are not known are passed over."""
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
        """The prompt's count has no cached tokens in it: they are added."""
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


def _turns(messages: Sequence[Message], mark: dict[str, Any]) -> list[dict[str, Any]]:
    """User and assistant in turn. A conversation that goes on is cached up to here.

    The first question is not: most of them are asked once, and writing to the cache is paid for.
    """
    turns: list[dict[str, Any]] = []
    for one in messages:
        if one.role == "system" or not one.content.strip():  # an empty text is refused
            continue
        if turns and turns[-1]["role"] == one.role:
            turns[-1]["content"].append(_text(one.content))
        else:
            turns.append({"role": one.role, "content": [_text(one.content)]})
    if not turns or turns[0]["role"] != "user":
        raise ConfigError("the first message after those of the system must be the user's")
    if len(turns) > 1:
        turns[-1]["content"][-1] |= mark
    return turns


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": plain(text)}
