"""The conversation with a model: kept within a size by cutting what old cells printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.rlm.models.types import Message
from atoll.text.tokens import estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT_OF_OLD = 200
"""Characters of an old observation that stay."""
RECENT = 4
"""Messages at the end that are never cut."""


class History:
    """System prompt, example, question, then replies and observations in turn."""

    def __init__(
        self, system: str, first: str, most_tokens: int, example: Sequence[str] = ()
    ) -> None:
        """`example` is a conversation before this one: user and assistant in turn."""
        self._messages = [Message("system", system)]
        for at, text in enumerate(example):
            self._messages.append(Message("assistant" if at % 2 else "user", text))
        self._messages.append(Message("user", first))
        self._most, self._fixed = most_tokens, len(self._messages)

    @property
    def messages(self) -> tuple[Message, ...]:
        """What the model is sent next."""
        return tuple(self._messages)

    def add(self, reply: str, observation: str) -> None:
        """One more turn."""
        self._messages += [Message("assistant", reply), Message("user", observation)]
        self._cut()

    def _cut(self) -> None:
        """From the oldest on, until it fits: the question and the last turns stay whole."""
        over = sum(estimate(one.content) for one in self._messages) - self._most
        for at in range(self._fixed, len(self._messages) - RECENT):
            if over <= 0:
                return
            old = self._messages[at]
            if len(old.content) > KEPT_OF_OLD:
                text = f"{old.content[:KEPT_OF_OLD]}\n[cut: it was long ago]"
                over -= estimate(old.content) - estimate(text)
                self._messages[at] = Message(old.role, text)
