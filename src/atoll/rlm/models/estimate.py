"""A guess at tokens where a server does not count them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.rlm.models.types import Usage
from atoll.text.tokens import estimate as count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.rlm.models.types import Message

TOKENS_PER_MESSAGE = 4


def usage(messages: Sequence[Message], text: str) -> Usage:
    """The usage of a call, flagged as a guess."""
    prompt = sum(count(message.content) + TOKENS_PER_MESSAGE for message in messages)
    return Usage(input_tokens=prompt, output_tokens=count(text), estimated=True)
