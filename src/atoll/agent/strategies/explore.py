"""explore: the model writes code that looks into the context; recurse: it hands on parts of it.

The loop itself is in `rlm/loop`; here is how it begins with what other strategies have learned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.agent.strategies.types import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.agent.rlm.types import RunResult
    from atoll.agent.strategies.types import Known, Price, Task

    Loop = Callable[[str], Awaitable[RunResult]]

TURNS, TURN_TOKENS, CELL_TOKENS = 4, 350, 100
"""Turns that a loop usually takes; tokens that each adds to the next prompt, and writes."""
PROMPT_TOKENS = 1_800
SPLIT = """\
Split the context into parts with chunk_text, and give each to rlm_query(task, part); then combine \
the answers by code."""


class Explore:
    """The code loop; `loop` runs it with a hint for its first message."""

    name, hint = "explore", ""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    async def price(self, task: Task, *, quick: bool = False) -> Price:  # noqa: ARG002 - both alike
        """Return the price of a few turns, each of which reads all that came before."""
        read = sum(PROMPT_TOKENS + turn * TURN_TOKENS for turn in range(TURNS)) // TURNS
        most = task.calls.account.budget.iterations
        return task.price(read, CELL_TOKENS, calls=TURNS, most_calls=most)

    async def run(self, task: Task, known: Known) -> Outcome:  # noqa: ARG002 - the loop has its own
        """Run the loop, which ends with an answer or with the reason for not having one."""
        hint = "\n".join(filter(None, (self.hint, known.prompt())))
        return Outcome(result=await self._loop(hint))


class Recurse(Explore):
    """The loop, with the advice to hand parts of the context to runs below it."""

    name, hint = "recurse", SPLIT
