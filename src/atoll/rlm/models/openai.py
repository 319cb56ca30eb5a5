"""OpenAI's chat completions, which vLLM, llama.cpp, Ollama and many others speak as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.rlm.models.dialect import count, finish_of, part, text_of
from atoll.rlm.models.draft import plain
from atoll.rlm.models.types import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.rlm.models.draft import Draft
    from atoll.rlm.models.types import Message, Options

OFFICIAL = "https://api.openai.com/v1"
_NEW, _OLD = "max_completion_tokens", "max_tokens"
_MOST_STOPS = 4


class OpenAI:
    """The dialect. `official`: the provider itself, whose newer models want newer words."""

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
    ) -> dict[str, Any]:
        """The request."""
        limit = self._other_limit if self._limit in without else self._limit
        said = [{"role": one.role, "content": plain(one.content)} for one in messages]
        body = {
            "model": model,
            "messages": said,
            limit: options.max_tokens,
            "temperature": options.temperature,
            "stop": [plain(one) for one in options.stop[:_MOST_STOPS]] or None,
            "stream": stream or None,
            "stream_options": {"include_usage": True} if stream else None,
        }
        return {k: v for k, v in body.items() if v is not None and k not in without}

    def read(self, said: dict[str, Any], draft: Draft) -> bool:
        """A whole answer has a message, an event the next piece of one."""
        choices = said.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        message = part(choice, "message") or part(choice, "delta")
        draft.add(text_of(message.get("content")) or text_of(message.get("refusal")))
        draft.counts.update(part(said, "usage"))
        if isinstance(choice, dict):
            draft.finish = finish_of(choice.get("finish_reason")) or draft.finish
        return False  # usage comes after the last piece, and then the end

    def usage(self, counts: Mapping[str, Any]) -> Usage | None:
        """The prompt's count has the cached tokens in it."""
        if "prompt_tokens" not in counts or "completion_tokens" not in counts:
            return None
        details = part(counts, "prompt_tokens_details")
        return Usage(
            input_tokens=count(counts, "prompt_tokens"),
            output_tokens=count(counts, "completion_tokens"),
            cached_tokens=count(details, "cached_tokens"),
            written_tokens=count(details, "cache_write_tokens"),
        )
