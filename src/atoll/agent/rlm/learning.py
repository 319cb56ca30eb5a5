"""A run and the episodic memory: advice changes its plan, and its outcome is remembered."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from atoll.agent.environment.exploration import context_tokens
from atoll.agent.memory.learner import Learner
from atoll.agent.memory.planner import quality
from atoll.agent.trajectory import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.agent.memory.episodic import EpisodicMemory
    from atoll.agent.rlm.model_calls import ModelCalls
    from atoll.agent.rlm.run import Plan
    from atoll.agent.rlm.types import Ending
    from atoll.search.index import ContextIndex

DIRECT_TIMES = 4
"""How often direct_tokens a context may have that is shown whole because that served before."""
WITHOUT = "it goes on without what earlier runs did"


class Learning:
    """One run's dealings with the memory; without a memory, nothing happens."""

    def __init__(self, memory: EpisodicMemory | None, calls: ModelCalls) -> None:
        self._calls, self._context_tokens, self._planned = calls, 0, ""
        root = memory is not None and calls.depth == 0
        self.learner = Learner(memory, self._tell) if memory is not None and root else None

    async def plan(
        self,
        question: str,
        index: ContextIndex | None,
        chosen: Plan,
        *,
        direct_tokens: int,
        clean: Callable[[str], str],
    ) -> Plan:
        """Return the plan that earlier runs speak for; without any, the one that was chosen."""
        if self.learner is None or (index is None and chosen.way == "direct"):
            self.learner = None  # a question without a context is just asked
            return chosen
        self._context_tokens = await asyncio.to_thread(context_tokens, index)
        fits = index is not None and self._context_tokens <= DIRECT_TIMES * direct_tokens
        may_show = chosen.way == "direct" or (fits and chosen.may_show)
        allowed = ("direct",) * may_show + ("scan", "search", "delegated")
        advice = await asyncio.to_thread(self.learner.advise, clean(question), allowed)
        if advice.strategy is None or (advice.trial and chosen.way == "direct"):
            return chosen
        self._planned = advice.strategy
        why, hint = f"{advice.strategy} by memory: {advice.why}", advice.prompt()
        way = "direct" if advice.strategy == "direct" else "loop"
        return dataclasses.replace(chosen, way=way, why=why, strategy=advice.strategy, hint=hint)

    async def remember(self, ending: Ending) -> None:
        """Keep how the run went."""
        if self.learner is None or ending.exploration is None:
            return
        seen, usage = ending.exploration, self._calls.totals.usage
        strategy = seen.strategy if seen.strategy != "none" else self._planned or "mixed"
        unfound = sum(not one.found for one in ending.evidence)
        await asyncio.to_thread(
            self.learner.remember,
            strategy,
            done=", ".join(f"{name} {number}" for name, number in seen.calls.items()),
            outcome=ending.ended.value,
            quality=quality(
                ending.ended.value,
                quotes=len(ending.evidence),
                unfound=unfound,
                saw_all=ending.way == "direct",
            ),
            tokens=usage.input_tokens + usage.output_tokens,
            context_tokens=self._context_tokens,
            efficiency=seen.token_efficiency,
        )

    def _tell(self, reason: str) -> None:
        self._calls.writer.emit(events.Refused(what="the memory", why=f"{reason}; {WITHOUT}"))
