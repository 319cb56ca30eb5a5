"""The conversation with a model: kept within a size by cutting what is long ago."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.rlm.models.types import Message
from atoll.text.tokens import estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT_OF_OLD = 200
"""Characters of an old message that stay."""
CUT = "\n[cut: it was long ago]"
CUT_TO = 0.75
"""Of the size: if every turn cut a little, no provider could reuse what it has read before."""
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
        self._fixed = len(self._messages)
        self._first, self._most, self._left_out = first, most_tokens, 0

    @property
    def messages(self) -> tuple[Message, ...]:
        """What the model is sent next."""
        return tuple(self._messages)

    def add(self, reply: str, observation: str) -> None:
        """One more turn."""
        self._messages += [Message("assistant", reply), Message("user", observation)]
        size = sum(estimate(one.content) for one in self._messages)
        if size > self._most:
            over = self._shorten(size - int(self._most * CUT_TO))
            self._leave_out(over)

    def _shorten(self, over: int) -> int:
        """From the oldest on, until it fits: the question and the last turns stay whole."""
        for at in range(self._fixed, len(self._messages) - RECENT):
            old = self._messages[at]
            if over > 0 and len(old.content) > KEPT_OF_OLD + len(CUT):
                text = old.content[:KEPT_OF_OLD] + CUT
                over -= estimate(old.content) - estimate(text)
                self._messages[at] = Message(old.role, text)
        return over

    def _leave_out(self, over: int) -> None:
        """Whole turns, where shortening was not enough."""
        begin = self._fixed
        while over > 0 and len(self._messages) > begin + RECENT:
            over -= sum(estimate(one.content) for one in self._messages[begin : begin + 2])
            del self._messages[begin : begin + 2]
            self._left_out += 1
            told = f"{self._first}\n\n[{self._left_out} earlier turns are left out]"
            self._messages[begin - 1] = Message("user", told)
