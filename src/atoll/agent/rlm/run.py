"""One run: plan how a question is worked on, and work on it; an rlm_query is a run inside it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import atoll
from atoll.agent.environment.core import REPLEnvironment
from atoll.agent.environment.exploration import Exploration, ExplorationLog, context_tokens
from atoll.agent.environment.options import context_of
from atoll.agent.memory.learner import Learner, quality
from atoll.agent.rlm import budget, prompts
from atoll.agent.rlm.context_sources import ContextSource, read_context
from atoll.agent.rlm.loop import Loop
from atoll.agent.rlm.model_calls import ModelCalls
from atoll.agent.rlm.models.types import Message, Usage
from atoll.agent.rlm.prompts import describe, facts
from atoll.agent.rlm.replies import parse
from atoll.agent.rlm.subcalls import Subcalls
from atoll.agent.rlm.types import Ended, RunResult
from atoll.agent.trajectory import events
from atoll.errors import AtollError
from atoll.text.redact import Redactor, secrets_of
from atoll.text.tokens import estimate

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.agent.environment.options import EnvironmentConfig
    from atoll.agent.memory.episodic import EpisodicMemory
    from atoll.agent.rlm.model_calls import ModelCalls
    from atoll.agent.rlm.options import RLMConfig
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
        allowed = ("direct",) * may_show + ("scan", "search", "delegated")
        advice = await asyncio.to_thread(self.learner.advise, clean(question), allowed)
        if advice.strategy is None or (advice.trial and chosen.way == "direct"):
            return chosen
        self._planned = advice.strategy
        why, hint = f"{advice.strategy} by memory: {advice.why}", advice.prompt()
        way = "direct" if advice.strategy == "direct" else "loop"
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


MAX_PARTS = 3
"""Calls for one direct answer: an empty reply is asked for again, a cut one is continued."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`loop` or `direct`, and why."""

    way: str
    why: str
    may_show: bool = True
    """Whether the whole context may be shown: there are no documents beside it."""
    strategy: str = ""
    """How to look, if earlier runs tell."""
    hint: str = ""
    """What the model is told of earlier runs."""


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
        index = await asyncio.to_thread(getattr, given, "index")
        calls.writer.emit(
            events.RunStarted(
                question=question,
                model=calls.models.main.name,
                sub_model=calls.models.sub.name,
                context=facts(index, given),
                budget=self._budget.to_dict(),
                atoll_version=atoll.__version__,
            )
        )
        if self._budget.usd is not None:
            self._tell_unpriced(calls, self._budget.usd)
        environment = self._config.environment
        if environment.documents is None and given.documents is not None:
            environment = dataclasses.replace(environment, documents=given.documents)
        return await self._work(question, given, calls, environment)

    def _tell_unpriced(self, calls: ModelCalls, usd: float) -> None:
        """Tell the trajectory of models without a price: a limit of dollars does not hold them."""
        limit = f"the budget of {budget.amount_text('usd', usd)}"
        models = (calls.models.main, calls.models.sub)
        for name in sorted({model.name for model in models if model.would_cost(Usage()) is None}):
            calls.writer.emit(events.Refused(what=limit, why=f"{name} has no price: {UNPRICED}"))

    async def _child(self, task: str, context: Any, calls: ModelCalls) -> RunResult:
        """Make a run within the run: the same sandboxes, but the documents stay the root's."""
        environment = dataclasses.replace(self._config.environment, **NOT_A_CHILDS)
        given = ContextSource(context=await asyncio.to_thread(context_of, context))
        await asyncio.to_thread(getattr, given, "index")  # made once, in a thread: it takes time
        return await self._work(task, given, calls, environment)

    async def _work(
        self,
        question: str,
        given: ContextSource,
        calls: ModelCalls,
        environment: EnvironmentConfig,
    ) -> RunResult:
        index, limit = given.index, self._config.direct_tokens
        others = environment.documents != given.documents  # those are in the context too
        chosen = plan(index, others, limit)
        learning = None
        is_question = index is None and chosen.way == "direct"  # without a context: just asked
        if environment.memory is not None and not is_question:
            learning = Learning(environment.memory, calls)
            chosen = await learning.plan(
                question, index, chosen, direct_tokens=limit, clean=self._clean
            )
        calls.writer.emit(
            events.Planned(
                parent=calls.parent,
                depth=calls.depth,
                way=chosen.way,
                why=chosen.why,
                strategy=chosen.strategy,
            )
        )
        if chosen.way == "direct":
            text = "" if index is None else self._clean(index.text(0, index.length))
            ending = await self._direct(question, text, calls)
            seen = await asyncio.to_thread(_shown_whole, text, ending.text)
            ending = dataclasses.replace(ending, exploration=seen)
        else:
            ending = await self._explore(question, given, calls, environment, hint=chosen.hint)
        ending = dataclasses.replace(ending, way=chosen.way, why=chosen.why)
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

    async def _direct(self, question: str, text: str, calls: ModelCalls) -> RunResult:
        """Ask one question with the whole text in it; a reply that was cut off is continued."""
        asked = prompts.direct_message(question, text) if text else question
        messages = [Message("system", prompts.DIRECT), Message("user", asked)]
        model, most = calls.models.at(calls.depth), self._config.max_tokens
        parts: list[str] = []
        for _ in range(MAX_PARTS):
            try:
                completion = await calls.ask(model, messages, calls.writer.new_call(), most)
            except budget.BudgetError as exc:
                return _direct_ending(parts, str(exc))
            parts.append(completion.text)
            is_cut, is_empty = completion.finish == "length", not completion.text.strip()
            if not is_cut and not is_empty:
                return _direct_ending(parts, "")
            messages += _follow_up(completion.text, prompts.EMPTY if is_empty else prompts.CONTINUE)
        return _direct_ending(
            parts, f"{MAX_PARTS} replies of at most {most:,} tokens were empty or cut"
        )

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
        config = dataclasses.replace(
            environment, context=given.context, max_concurrency=self._config.concurrency
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
    quotes = [given.quote for given in ending.evidence]
    seen = ExplorationLog(env.invocations).summary(ending.text, *quotes)
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


def _direct_ending(parts: list[str], trouble: str) -> RunResult:
    text = "".join(parts)
    if text.lstrip().startswith("FINAL("):  # a model may do so, though it was not asked to
        text = parse(text).answer or text
    if not text.strip():
        return RunResult(ended=Ended.UNANSWERED, reason=trouble, turns=1)
    return RunResult(
        ended=Ended.FORCED if trouble else Ended.ANSWERED, text=text, reason=trouble, turns=1
    )


def _shown_whole(text: str, answer: str) -> Exploration:
    return Exploration(
        strategy="direct", exploration_tokens=estimate(text), result_tokens=estimate(answer)
    )


def _follow_up(text: str, request: str) -> list[Message]:
    said = [Message("assistant", text)] if text.strip() else []
    return [*said, Message("user", request)]


def plan(index: ContextIndex | None, documents: bool, threshold: int) -> Plan:  # noqa: FBT001
    """Return the way to take for a context, given the tokens below which it is shown."""
    if documents:
        return Plan("loop", "there are documents to look into", may_show=False)
    if index is None:
        return Plan("direct", "there is no context")
    if index.length > threshold * 8:
        return Plan("loop", f"{index.length:,} characters are more than {threshold:,} tokens")
    tokens = estimate(index.text(0, index.length))
    if tokens <= threshold:
        return Plan("direct", f"about {tokens:,} tokens fit into one question ({threshold:,})")
    return Plan("loop", f"about {tokens:,} tokens are more than {threshold:,}")


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
        asked = dataclasses.replace(
            config,
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
