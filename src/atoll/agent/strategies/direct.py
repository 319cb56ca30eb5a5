"""direct: the context fits the window, so the model reads it; a reply that was cut is continued."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from atoll.agent.environment.exploration import Exploration
from atoll.agent.rlm import prompts
from atoll.agent.rlm.budget import BudgetError
from atoll.agent.rlm.models.types import Message
from atoll.agent.rlm.replies import parse
from atoll.agent.rlm.types import Ended, RunResult
from atoll.agent.strategies.types import Outcome
from atoll.text.tokens import WHOLE, estimate

if TYPE_CHECKING:
    from atoll.agent.strategies.types import Known, Price, Task
    from atoll.search.index import ContextIndex

MAX_PARTS = 3
"""Calls for one answer: an empty reply is asked for again, a cut one is continued."""
USUAL_TOKENS = 60


class Direct:
    """One question with the whole context in it."""

    name = "direct"

    async def price(self, task: Task, *, quick: bool = False) -> Price:  # noqa: ARG002 - both alike
        """Return the price of reading all of the context once."""
        read = _tokens(task.index) + estimate(prompts.DIRECT) + estimate(task.question)
        return task.price(read, USUAL_TOKENS, most_calls=MAX_PARTS)

    async def run(self, task: Task, known: Known) -> Outcome:  # noqa: ARG002 - it sees everything
        """Ask, and go on while the reply is empty or cut."""
        index = task.index
        text = "" if index is None else task.clean(index.text(0, index.length))
        asked = prompts.direct_message(task.question, text) if text else task.question
        ending = await self._ask(task, asked)
        seen = Exploration(
            strategy="direct",
            exploration_tokens=estimate(text),
            result_tokens=estimate(ending.text),
        )
        return Outcome(result=replace(ending, exploration=seen))

    async def _ask(self, task: Task, asked: str) -> RunResult:
        messages = [Message("system", prompts.DIRECT), Message("user", asked)]
        parts: list[str] = []
        for _ in range(MAX_PARTS):
            try:
                completion = await task.complete(messages, task.max_tokens)
            except BudgetError as exc:
                return _ending(parts, str(exc))
            parts.append(completion.text)
            is_cut, is_empty = completion.finish == "length", not completion.text.strip()
            if not is_cut and not is_empty:
                return _ending(parts, "")
            messages += [] if is_empty else [Message("assistant", completion.text)]
            messages.append(Message("user", prompts.EMPTY if is_empty else prompts.CONTINUE))
        most = f"{task.max_tokens:,} tokens"
        return _ending(parts, f"{MAX_PARTS} replies of at most {most} were empty or cut")


def _tokens(index: ContextIndex | None) -> int:
    """Return about how many tokens a context has, by its beginning."""
    sample = "" if index is None else index.text(0, WHOLE)
    return estimate(sample) * index.length // len(sample) if index is not None and sample else 0


def _ending(parts: list[str], trouble: str) -> RunResult:
    text = "".join(parts)
    if text.lstrip().startswith("FINAL("):  # a model may do so, though it was not asked to
        text = parse(text).answer or text
    if not text.strip():
        return RunResult(ended=Ended.UNANSWERED, reason=trouble, turns=1)
    ended = Ended.FORCED if trouble else Ended.ANSWERED
    return RunResult(ended=ended, text=text, reason=trouble, turns=1)
