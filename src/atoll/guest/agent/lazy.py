"""Answers that are asked for when they are used: a plain loop of queries becomes one batch.

Whatever is pending when the first answer is needed goes to the host together, side by side there.
An unused answer is never requested.
"""

from __future__ import annotations

from ..core.failures import HostCallError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    AskAll = Callable[[list[str]], list[Any]]

MAX_AT_ONCE = 1_000


class LazyAnswer:
    """A text that is on its way: any use of it waits for it. str(answer) is a plain text."""

    def __init__(self, queue: LazyQueue, prompt: str) -> None:
        self._queue, self.prompt = queue, prompt
        self.settled: str | None = None

    def __str__(self) -> str:
        if self.settled is None:
            self._queue.settle(self)
        if self.settled is None or getattr(self.settled, "failed", False):
            raise HostCallError(self.settled or "there is no answer")
        return self.settled

    def __getattr__(self, name: str) -> Any:
        return getattr(str(self), name)

    def __add__(self, other: Any) -> str:
        return str(self) + str(other)

    def __radd__(self, other: Any) -> str:
        return str(other) + str(self)


def _as_text(name: str) -> Callable[..., Any]:
    def method(self: LazyAnswer, *args: Any) -> Any:
        plain = [str(value) if isinstance(value, LazyAnswer) else value for value in args]
        return getattr(str(self), name)(*plain)

    return method


# Operators are looked up on the class, past __getattr__.
_OPERATORS = "repr format len getitem contains iter hash eq ne lt le gt ge mul rmul mod"
for _name in map("__{}__".format, _OPERATORS.split()):
    setattr(LazyAnswer, _name, _as_text(_name))


class LazyQueue:
    """The answers that were promised and not yet asked for."""

    def __init__(self, ask_all: AskAll) -> None:
        self._ask_all = ask_all
        self._pending: list[LazyAnswer] = []

    def promise(self, prompt: str) -> LazyAnswer:
        """Return an answer that is fetched when it is used."""
        answer = LazyAnswer(self, prompt)
        self._pending.append(answer)
        return answer

    def settle(self, wanted: LazyAnswer) -> None:
        """Ask for the wanted answer, and for all that wait beside it."""
        waiting = [pending for pending in self._pending if pending is not wanted]
        batch = [wanted, *waiting[: MAX_AT_ONCE - 1]]
        answers = self._ask_all([pending.prompt for pending in batch])
        self._pending = waiting[MAX_AT_ONCE - 1 :]
        for pending, text in zip(batch, answers):
            pending.settled = text if isinstance(text, str) else str(text)
