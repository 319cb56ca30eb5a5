"""A guess at tokens where a server does not count them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.rlm.models.types import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.rlm.models.types import Message

CHARACTERS_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4


def tokens(text: str) -> int:
    """About how many tokens a text has: a quarter of its characters, rounded up."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def usage(messages: Sequence[Message], text: str) -> Usage:
    """The usage of a call, flagged as a guess."""
    prompt = sum(tokens(message.content) + TOKENS_PER_MESSAGE for message in messages)
    return Usage(input_tokens=prompt, output_tokens=tokens(text), estimated=True)
