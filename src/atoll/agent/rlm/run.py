"""One run: plan how to work on a question, follow the plan; an rlm_query is a run inside it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import atoll
from atoll.agent.environment.core import REPLEnvironment
from atoll.agent.environment.exploration import context_tokens, explored
from atoll.agent.environment.options import context_of
from atoll.agent.memory.learner import Learner, quality
from atoll.agent.rlm import budget, prompts
from atoll.agent.rlm.context_sources import ContextSource, read_context
from atoll.agent.rlm.loop import Loop
from atoll.agent.rlm.model_calls import ModelCalls
from atoll.agent.rlm.models.types import Usage
from atoll.agent.rlm.prompts import describe, facts
from atoll.agent.rlm.subcalls import Subcalls
from atoll.agent.strategies import planner
from atoll.agent.strategies.direct import Direct
from atoll.agent.strategies.explore import Explore, Recurse
from atoll.agent.strategies.lookup import Lookup
from atoll.agent.strategies.planner import LOOP, Plan
from atoll.agent.strategies.question import asked_of
from atoll.agent.strategies.scan import Scan
from atoll.agent.strategies.types import Known, Task
from atoll.agent.trajectory import events
from atoll.errors import AtollError
from atoll.search.coverage import CoverageLog
from atoll.text.redact import Redactor, secrets_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.agent.environment.options import EnvironmentConfig
    from atoll.agent.memory.episodic import EpisodicMemory
    from atoll.agent.rlm.model_calls import ModelCalls
    from atoll.agent.rlm.options import RLMConfig
    from atoll.agent.rlm.types import RunResult
    from atoll.agent.strategies.types import Strategy
    from atoll.search.index import ContextIndex


DIRECT_TIMES = 4
"""How often direct_tokens a context may have that is shown whole because that served before."""
WITHOUT = "it goes on without what earlier runs did"


class Learning:
    """One run's dealings with the memory."""

    def __init__(self, memory: EpisodicMemory, calls: ModelCalls) -> None:
        self._calls, self._context_tokens, self._planned = calls, 0, ""
        self.learner = Learner(memory, self._tell)

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
        self._context_tokens = await asyncio.to_thread(context_tokens, index)
        fits = index is not None and self._context_tokens <= DIRECT_TIMES * direct_tokens
        may_show = chosen.way == "direct" or (fits and chosen.may_show)
        driven = chosen.way in ("lookup", "scan")
        allowed = ("direct",) * may_show + ("lookup",) * driven + ("scan", "search", "delegated")
        advice = await asyncio.to_thread(self.learner.advise, clean(question), allowed)
        if advice.strategy is None or (advice.trial and chosen.way == "direct"):
            return chosen
        self._planned = advice.strategy
        why, hint = f"{advice.strategy} by memory: {advice.why}", advice.prompt()
        own = ("direct", "lookup", "scan") if driven else ("direct",)
        way = advice.strategy if advice.strategy in own else LOOP
        return dataclasses.replace(chosen, way=way, why=why, strategy=advice.strategy, hint=hint)

    async def remember(self, ending: RunResult) -> None:
        """Keep how the run went."""
        if ending.exploration is None:
            return
        seen, usage = ending.exploration, self._calls.totals.usage
        strategy = seen.strategy if seen.strategy != "none" else self._planned or "mixed"
        unfound = sum(not quote.found for quote in ending.evidence)
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


NOT_A_CHILDS: dict[str, Any] = dict.fromkeys(("documents", "submit_fields", "session_id", "memory"))
"""Options that are the root's alone: documents, the answer's fields, folder of output, memory."""
UNPRICED = "what it costs is not counted; name its price in the file of ATOLL_PRICES"


class Run:
    """A question and all that is asked beneath it."""

    def __init__(self, config: RLMConfig, live: LiveEnvironment | None = None) -> None:
        """`live` is the environment of a session, which outlasts the run."""
        self._config, self._budget, self._live = config, config.budget, live
        redactor = Redactor(secrets_of(os.environ))
        self._clean = redactor.redact if config.environment.redact else str

    async def root(self, question: str, context: Any, calls: ModelCalls) -> RunResult:
        """Begin a run: emit what is given, choose a way, and follow it."""
        given = await asyncio.to_thread(read_context, context)
        index = given.index
        calls.writer.emit(
            events.RunStarted(
                question=question,
                model=calls.models.main.name,
                sub_model=calls.models.sub.name,
                context=facts(index, given),
                budget=dataclasses.asdict(self._budget),
                atoll_version=atoll.__version__,
            )
        )
        if self._budget.usd is not None:
            self._tell_unpriced(calls, self._budget.usd)
        return await self._work(question, given, calls, self._with_documents(given))

    async def plan(self, question: str, context: Any, calls: ModelCalls) -> Plan:
        """Return how a question would be worked on, with the price of each strategy."""
        given = await asyncio.to_thread(read_context, context)
        task = self._task(question, given, calls)
        environment = self._with_documents(given)
        chosen, _ = await self._planned(task, given, environment)
        strategies = self._strategies(task, given, environment, chosen.hint)
        return await planner.priced(chosen, task, strategies, everything=True)

    def _with_documents(self, given: ContextSource) -> EnvironmentConfig:
        environment = self._config.environment
        if environment.documents is None and given.documents is not None:
            return environment.with_values(documents=given.documents.absolute())
        return environment

    def _tell_unpriced(self, calls: ModelCalls, usd: float) -> None:
        """Tell the trajectory of models without a price: a limit of dollars does not hold them."""
        limit = f"the budget of {budget.amount_text('usd', usd)}"
        models = (calls.models.main, calls.models.sub)
        for name in sorted({model.name for model in models if model.would_cost(Usage()) is None}):
            calls.writer.emit(events.Refused(what=limit, why=f"{name} has no price: {UNPRICED}"))

    async def _child(self, task: str, context: Any, calls: ModelCalls) -> RunResult:
        """Make a run within the run: the same sandboxes, but the documents stay the root's."""
        environment = self._config.environment.with_values(**NOT_A_CHILDS)
        given = await asyncio.to_thread(lambda: ContextSource(context=context_of(context)))
        return await self._work(task, given, calls, environment)

    async def _work(
        self,
        question: str,
        given: ContextSource,
        calls: ModelCalls,
        environment: EnvironmentConfig,
    ) -> RunResult:
        task = self._task(question, given, calls)
        chosen, learning = await self._planned(task, given, environment)
        strategies = self._strategies(task, given, environment, chosen.hint)
        chosen = await planner.priced(chosen, task, strategies)
        planner.check_cost(chosen, self._config.max_cost)
        ending = await self._followed(chosen, task, strategies)
        calls.writer.emit(
            events.FinalGiven(
                how=ending.how,
                text=ending.text,
                evidence=tuple(map(dataclasses.asdict, ending.evidence)),
                coverage={} if ending.coverage is None else ending.coverage.to_dict(),
                ended=ending.ended.value,
                reason=ending.reason,
                parent=calls.parent,
                depth=calls.depth,
            )
        )
        if learning is None:
            return ending
        await learning.remember(ending)
        return dataclasses.replace(ending, learner=learning.learner)

    def _task(self, question: str, given: ContextSource, calls: ModelCalls) -> Task:
        index, context = given.index, given.context
        is_data = isinstance(context, list | dict)
        return Task(
            question=question,
            asked=asked_of(question),
            index=index,
            calls=calls,
            ledger=CoverageLog(0 if index is None else index.length),
            max_tokens=self._config.max_tokens,
            clean=self._clean,
            data=context if is_data else None,
        )

    async def _planned(
        self, task: Task, given: ContextSource, environment: EnvironmentConfig
    ) -> tuple[Plan, Learning | None]:
        """Return the plan that size, question, memory and caller speak for, without prices."""
        config, limit = self._config, self._config.direct_tokens
        others = environment.documents != given.documents  # those are in the context too
        chosen = planner.by_size(task.index, limit, documents=others)
        is_question = task.index is None and chosen.way == "direct"  # without a context: just asked
        is_chosen = config.strategy != planner.AUTO and not is_question
        if is_chosen:
            chosen = Plan(way=config.strategy, why="the caller chose it")
        model = task.calls.models.at(task.calls.depth).name
        profile = prompts.profile_of(model, config.profile)
        if profile.is_short and not (is_chosen or others or self._needs_loop(environment)):
            chosen = planner.by_question(chosen, task.asked, model)
        if environment.memory is None or is_question:
            return chosen, None
        learning = Learning(environment.memory, task.calls)
        advised = await learning.plan(
            task.question, task.index, chosen, direct_tokens=limit, clean=self._clean
        )
        return (dataclasses.replace(chosen, hint=advised.hint) if is_chosen else advised), learning

    def _needs_loop(self, environment: EnvironmentConfig) -> bool:
        """Return whether the caller set something that only the loop heeds."""
        config = self._config
        own = (config.instructions, config.system_prompt, environment.submit_fields)
        return any(own) or bool(environment.tools or environment.require_exploration_before_final)

    def _strategies(
        self, task: Task, given: ContextSource, environment: EnvironmentConfig, hint: str
    ) -> dict[str, Strategy]:
        async def loop(learned: str) -> RunResult:
            told = "\n".join(filter(None, (hint, learned)))
            return await self._explore(task.question, given, task.calls, environment, hint=told)

        made: list[Strategy] = [Direct(), Lookup(), Scan(), Explore(loop), Recurse(loop)]
        return {one.name: one for one in made}

    async def _followed(self, plan: Plan, task: Task, strategies: dict[str, Strategy]) -> RunResult:
        """Run the strategies of a plan until one answers; the last one always does."""
        known, why = Known(), plan.why
        for name in plan.order:
            way = name if name in ("direct", "lookup", "scan") else LOOP
            task.calls.writer.emit(
                events.Planned(
                    parent=task.calls.parent,
                    depth=task.calls.depth,
                    way=way,
                    why=why,
                    strategy=plan.strategy,
                    prices={one: price.to_dict() for one, price in plan.prices.items()},
                )
            )
            outcome = await strategies[name].run(task, known)
            if outcome.result is not None:
                return dataclasses.replace(outcome.result, way=way, why=why)
            why = f"{name} handed over: {outcome.why}"
        raise AssertionError("explore always ends with a result")

    async def _explore(
        self,
        question: str,
        given: ContextSource,
        calls: ModelCalls,
        environment: EnvironmentConfig,
        *,
        hint: str = "",
    ) -> RunResult:
        """Run the loop with a sandbox beside it; `hint` is what earlier runs tell."""
        subcalls = Subcalls(self._config, calls, given.context, self._child, self._clean)
        config = environment.with_values(
            context=given.context, max_concurrency=self._config.concurrency
        )
        live = self._live if self._live is not None and not calls.depth else LiveEnvironment()
        try:
            env = await live.open(config, subcalls)
            loop = Loop(self._config, calls, env, subcalls)
            has_documents, is_short = environment.documents is not None, loop.profile.is_short
            first = self._clean(
                describe(env.index, given.kind, documents=has_documents, is_short=is_short)
            )
            if live.used:
                first += prompts.kept_variables(await live.variables())
            first += f"\n{hint}" if hint else ""
            subcalls.ledger = env.ledger
            return await _explored(await loop.run(question, first), env, calls)
        finally:
            await subcalls.close()
            if live is not self._live:
                await live.close()


async def _explored(ending: RunResult, env: REPLEnvironment, calls: ModelCalls) -> RunResult:
    """Return the ending with how it was found, and tell that to the trajectory."""
    seen = explored(env.invocations, ending)
    nodes, left_out = await asyncio.to_thread(env.research.graph)
    calls.writer.emit(
        events.Explored(
            parent=calls.parent,
            depth=calls.depth,
            strategy=seen.strategy,
            calls=dict(seen.calls),
            exploration_tokens=seen.exploration_tokens,
            result_tokens=seen.result_tokens,
            token_efficiency=seen.token_efficiency,
            nodes=nodes,
            left_out=left_out,
        )
    )
    return dataclasses.replace(ending, exploration=seen)


GIVEN = ("context", "answer")
"""Variables that every question has."""


@dataclass(slots=True)
class LiveEnvironment:
    """Opens an environment for the first question and hands the same one to the next.

    Guest code calls llm_query and rlm_query through this object, so that a call is paid for by the
    question that is worked on now.
    """

    used: bool = False
    """Whether an earlier question was worked on in it."""
    _env: REPLEnvironment | None = None
    _subcalls: Subcalls | None = None

    async def open(self, config: EnvironmentConfig, subcalls: Subcalls) -> REPLEnvironment:
        """Return the environment, ready for a question whose sub-calls are these."""
        self._subcalls = subcalls
        if self._env is not None:
            self.used = True
            await self._env.next_question()
            return self._env
        asked = config.with_values(
            on_llm_query=self._llm_query,
            on_rlm_query=self._rlm_query,
            record_exploration=False,
        )
        env = await _made(asked)
        self._env = await env.__aenter__()
        return self._env

    async def variables(self) -> list[str]:
        """Return the names of variables that earlier questions left; the newest are last."""
        if self._env is None:
            return []
        return [name for name in await self._env.variable_names() if name not in GIVEN]

    async def close(self) -> None:
        """End the environment."""
        env, self._env = self._env, None
        if env is not None:
            await env.close()

    async def _llm_query(self, *args: Any) -> Any:
        assert self._subcalls is not None
        return await self._subcalls.llm_query(*args)

    async def _rlm_query(self, *args: Any) -> Any:
        assert self._subcalls is not None
        return await self._subcalls.rlm_query(*args)


async def _made(config: EnvironmentConfig) -> REPLEnvironment:
    """Make an environment in a thread, as data is written out for its index; never left open."""
    making = asyncio.ensure_future(asyncio.to_thread(REPLEnvironment, config))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        with contextlib.suppress(AtollError):
            await (await making).close()
        raise
