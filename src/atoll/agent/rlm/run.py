"""One run: plan how a question is worked on, and work on it; an rlm_query is a run inside it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import atoll
from atoll.agent.environment.exploration import Exploration, ExplorationLog
from atoll.agent.environment.options import context_of
from atoll.agent.rlm import budget, prompts
from atoll.agent.rlm.context_sources import ContextSource, read_context
from atoll.agent.rlm.learning import Learning
from atoll.agent.rlm.loop import Loop
from atoll.agent.rlm.models.types import Message, Usage
from atoll.agent.rlm.prompts import describe, facts
from atoll.agent.rlm.replies import parse
from atoll.agent.rlm.session import LiveEnvironment
from atoll.agent.rlm.subcalls import Subcalls
from atoll.agent.rlm.types import Ended, Ending
from atoll.agent.trajectory import events
from atoll.text.redact import Redactor, secrets_of
from atoll.text.tokens import estimate

if TYPE_CHECKING:
    from atoll.agent.environment.core import REPLEnvironment
    from atoll.agent.environment.options import EnvironmentConfig
    from atoll.agent.rlm.model_calls import ModelCalls
    from atoll.agent.rlm.options import RLMConfig
    from atoll.search.index import ContextIndex

NOT_A_CHILDS: dict[str, Any] = dict.fromkeys(("documents", "submit_fields", "session_id", "memory"))
"""Options that are the root's alone: documents, the answer's fields, folder of output, memory."""
UNPRICED = "what it costs is not counted; name its price in the file of ATOLL_PRICES"


MOST_PARTS = 3
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

    async def root(self, question: str, context: Any, calls: ModelCalls) -> Ending:
        """Begin: what is given is told to the trajectory first."""
        given = await asyncio.to_thread(read_context, context)
        index = await asyncio.to_thread(lambda: given.index)
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
        self._tell_unpriced(calls)
        environment = self._config.environment
        if environment.documents is None:
            environment = dataclasses.replace(environment, documents=given.documents)
        return await self._work(question, given, calls, environment)

    def _tell_unpriced(self, calls: ModelCalls) -> None:
        """A limit of dollars holds for no model whose price is not known: that is told."""
        if self._budget.usd is None:
            return
        limit = f"the budget of {budget.amount_text('usd', self._budget.usd)}"
        models = (calls.models.main, calls.models.sub)
        for name in sorted({one.name for one in models if one.would_cost(Usage()) is None}):
            calls.writer.emit(events.Refused(what=limit, why=f"{name} has no price: {UNPRICED}"))

    async def _child(self, task: str, context: Any, calls: ModelCalls) -> Ending:
        """Make a run within the run: the same sandboxes, but the documents stay the root's."""
        environment = dataclasses.replace(self._config.environment, **NOT_A_CHILDS)
        given = ContextSource(context=await asyncio.to_thread(context_of, context))
        return await self._work(task, given, calls, environment)

    async def _work(
        self,
        question: str,
        given: ContextSource,
        calls: ModelCalls,
        environment: EnvironmentConfig,
    ) -> Ending:
        index = await asyncio.to_thread(lambda: given.index)
        others = environment.documents != given.documents  # those are in the context too
        chosen = plan(index, others, self._config.direct_tokens)
        learning = Learning(environment.memory, calls)
        limit = self._config.direct_tokens
        chosen = await learning.plan(
            question, index, chosen, direct_tokens=limit, clean=self._clean
        )
        place: dict[str, Any] = {"parent": calls.parent, "depth": calls.depth}
        calls.writer.emit(
            events.Planned(way=chosen.way, why=chosen.why, strategy=chosen.strategy, **place)
        )
        if chosen.way == "direct":
            text = "" if index is None else self._clean(index.text(0, index.length))
            ending = await self._direct(question, text, calls)
            seen = await asyncio.to_thread(_shown_whole, text, ending.text)
            ending = dataclasses.replace(ending, exploration=seen)
        else:
            ending = await self._explore(question, given, calls, environment, hint=chosen.hint)
        ending = dataclasses.replace(
            ending, way=chosen.way, why=chosen.why, learner=learning.learner
        )
        calls.writer.emit(_final(ending, place))
        await learning.remember(ending)
        return ending

    async def _direct(self, question: str, text: str, calls: ModelCalls) -> Ending:
        """Ask one question with the whole text in it; a reply that was cut off is continued."""
        asked = prompts.direct_message(question, text) if text else question
        messages = [Message("system", prompts.DIRECT), Message("user", asked)]
        model, most = calls.models.at(calls.depth), self._config.max_tokens
        parts: list[str] = []
        for _ in range(MOST_PARTS):
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
            parts, f"{MOST_PARTS} replies of at most {most:,} tokens were empty or cut"
        )

    async def _explore(
        self,
        question: str,
        given: ContextSource,
        calls: ModelCalls,
        environment: EnvironmentConfig,
        *,
        hint: str = "",
    ) -> Ending:
        """The loop, with a sandbox beside it; `hint` is what earlier runs tell."""
        subcalls = Subcalls(self._config, calls, given.context, self._child, self._clean)
        config = dataclasses.replace(
            environment, context=given.context, max_concurrency=self._config.concurrency
        )
        live = self._live if self._live is not None and not calls.depth else LiveEnvironment()
        try:
            env = await live.open(config, subcalls)
            has_documents = environment.documents is not None
            model = calls.models.at(calls.depth).name
            is_short = prompts.chosen_profile(self._config.profile, model).is_short
            first = self._clean(
                describe(env.index, given.kind, documents=has_documents, is_short=is_short)
            )
            first += prompts.kept_variables(await live.variables())
            first += f"\n{hint}" if hint else ""
            subcalls.ledger = env.ledger
            ending = await Loop(self._config, calls, env, subcalls).run(question, first)
            return await _explored(ending, env, calls)
        finally:
            await subcalls.close()
            if live is not self._live:
                await live.close()


async def _explored(ending: Ending, env: REPLEnvironment, calls: ModelCalls) -> Ending:
    """Return the ending with how it was found, and tell that to the trajectory."""
    quotes = (one.quote for one in ending.evidence)
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


def _final(ending: Ending, place: dict[str, Any]) -> events.FinalGiven:
    return events.FinalGiven(
        how=ending.how,
        text=ending.text,
        evidence=tuple(dataclasses.asdict(one) for one in ending.evidence),
        coverage={} if ending.coverage is None else ending.coverage.to_dict(),
        ended=ending.ended.value,
        reason=ending.reason,
        **place,
    )


def _direct_ending(parts: list[str], trouble: str) -> Ending:
    text = "".join(parts)
    if text.lstrip().startswith("FINAL("):  # a model may do so, though it was not asked to
        text = parse(text).answer or text
    if not text.strip():
        return Ending(ended=Ended.UNANSWERED, reason=trouble, turns=1)
    return Ending(
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
    """The way to take for a context, given the tokens below which it is shown."""
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
