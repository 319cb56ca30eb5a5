"""The conversation with a model: kept within a size by cutting what is long ago."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from atoll.agent.rlm.models.types import Message
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
_BLOCK_END = re.compile(r"</\w+ [0-9a-f]+>")


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
        self._observed: dict[str, None] = {}
        self._newest: tuple[str, str] | None = None
        self._aside = ""

    @property
    def messages(self) -> tuple[Message, ...]:
        """What the model is sent next."""
        if not self._aside:
            return tuple(self._messages)
        *before, last = self._messages
        return (*before, Message(last.role, f"{last.content}\n{self._aside}"))

    def begin_again(self, first: str) -> None:
        """Replace the first message, before any turn."""
        self._first = first
        self._messages[self._fixed - 1] = Message("user", first)

    def add(self, reply: str, observation: str, note: str = "", aside: str = "") -> None:
        """Add one more turn; the note follows what was observed, and is not part of it.

        `aside` ends the newest message, until the next turn: it is not kept.

        Of a turn that is the same as the one before, only the note is added: a small model that
        sees itself repeat something goes on with it.
        """
        if (reply, observation) == self._newest:
            said = f"{self._messages[-1].content}\n{note}"
            self._messages[-1] = Message("user", said)
        else:
            said = "\n".join(filter(None, (observation, note)))
            self._messages += [Message("assistant", reply), Message("user", said)]
        self._newest = reply, observation
        self._observed.pop(observation, None)  # what was observed twice is new again
        self._observed[observation] = None
        self._aside = aside
        size = estimate(aside) + sum(estimate(one.content) for one in self._messages)
        if size > self._most:
            over = self._shorten(size - int(self._most * CUT_TO))
            self._leave_out(over)

    def brief(self, system: str, last: str, most_tokens: float) -> tuple[Message, ...]:
        """Return a short conversation that ends with `last`: the question and the newest turns.

        The question is always in it; turns are added from the newest back while they fit.
        """
        turns = self._messages[self._fixed :]
        taken: list[Message] = []
        room = most_tokens - sum(map(estimate, (system, self._first, last)))
        for at in range(len(turns) - 2, -1, -2):
            pair = [Message(one.role, _shortened(one.content)) for one in turns[at : at + 2]]
            whole = turns[at : at + 2]
            pair = whole if _size(whole) <= room else pair
            room -= _size(pair)
            if room < 0:
                break
            taken = [*pair, *taken]
        return (
            Message("system", system),
            Message("user", self._first),
            *taken,
            Message("user", last),
        )

    def observed(self, system: str, last: str, most_tokens: float) -> tuple[Message, ...]:
        """Return one message with the question, the newest observations that fit, and `last`.

        The replies are not in it: a small model that sees code goes on with code.
        """
        shown: list[str] = []
        room = most_tokens - sum(map(estimate, (system, self._first, last)))
        for one in reversed(self._observed):
            room -= estimate(one)
            if room < 0:
                break
            shown.append(one)
        text = "\n\n".join((self._first, *reversed(shown), last))
        return Message("system", system), Message("user", text)

    def _shorten(self, over: int) -> int:
        """Shorten messages from the oldest on, until they fit; the last turns stay whole."""
        for at in range(self._fixed, len(self._messages) - RECENT):
            old = self._messages[at]
            if over > 0 and len(old.content) > KEPT_OF_OLD + len(CUT):
                text = _shortened(old.content)
                over -= estimate(old.content) - estimate(text)
                self._messages[at] = Message(old.role, text)
        return over

    def _leave_out(self, over: int) -> None:
        """Leave out whole turns, where shortening was not enough."""
        begin = self._fixed
        while over > 0 and len(self._messages) > begin + RECENT:
            over -= sum(estimate(one.content) for one in self._messages[begin : begin + 2])
            del self._messages[begin : begin + 2]
            self._left_out += 1
            told = f"{self._first}\n\n[{self._left_out} earlier turns are left out]"
            self._messages[begin - 1] = Message("user", told)


def _shortened(text: str) -> str:
    """Return the beginning of a text; a block that was cut open is closed by its own tag."""
    if len(text) <= KEPT_OF_OLD + len(CUT):
        return text
    head = text[:KEPT_OF_OLD]
    ends = _BLOCK_END.findall(text[KEPT_OF_OLD:])
    opened = f"<{ends[-1][2:]}" in head if ends else False
    return head + CUT + (f"\n{ends[-1]}" if opened else "")


def _size(messages: Sequence[Message]) -> int:
    return sum(estimate(one.content) for one in messages)
