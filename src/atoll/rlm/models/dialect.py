"""What a provider's way of speaking must tell the client; the ways themselves are files beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.rlm.models.draft import Draft
    from atoll.rlm.models.types import Finish, Message, Options, Usage

_FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
_MOST_TOKENS = 1_000_000_000


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
    ) -> dict[str, Any]:
        """The request, without the fields that the server was found not to take."""

    def read(self, said: dict[str, Any], draft: Draft) -> bool:
        """Take in a whole answer, or one event of it; true: nothing comes after it."""

    def usage(self, counts: Mapping[str, Any]) -> Usage | None:
        """What the server said of tokens; None: nothing."""


def finish_of(reason: object) -> Finish | None:
    """How an answer ended, in one language for all; None: it has not."""
    return _FINISHES.get(reason, "other") if isinstance(reason, str) else None


def count(counts: Mapping[str, Any], name: str) -> int:
    """A number of tokens that a server gave; 0 for what cannot be one."""
    value = counts.get(name)
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else 0


def part(value: Any, name: str) -> dict[str, Any]:
    """A field that should be an object; empty where it is not."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or parts of which some are text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [
        one.get("text") for one in parts if isinstance(one, dict) and one.get("type") == "text"
    ]
    return "".join(text for text in texts if isinstance(text, str))
