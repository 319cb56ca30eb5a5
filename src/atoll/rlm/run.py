"""One run: plans how a question is worked on, and works on it; a child of it is one too."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, Any

import atoll
from atoll.environment.core import REPLEnvironment
from atoll.environment.setting import context_of, index_of
from atoll.errors import AtollError
from atoll.rlm import budget, prompts
from atoll.rlm.describe import describe, facts
from atoll.rlm.loop import Ending, Loop
from atoll.rlm.material import Material, material_of
from atoll.rlm.models.types import Message, Usage
from atoll.rlm.plan import plan
from atoll.rlm.subcalls import Subcalls
from atoll.rlm.trajectory import events
from atoll.text.redact import Redactor, secrets_of

if TYPE_CHECKING:
    from atoll.rlm.asking import Asker
    from atoll.rlm.settings import Settings

NOT_A_CHILDS = {"documents": None, "submit_fields": None, "session_id": None}
"""Options that are the root's alone: its documents, its answer's fields, its folder of output."""
UNPRICED = "what it costs is not counted; name its price in the file of ATOLL_PRICES"


class Run:
    """A question and all that is asked beneath it."""

    def __init__(self, settings: Settings, limits: budget.Budget) -> None:
        self._settings, self._budget = settings, limits
        redactor = Redactor(secrets_of(os.environ))
        self._clean = redactor.redact if settings.environment.get("redact", True) else str

    async def root(self, question: str, context: Any, asker: Asker) -> Ending:
        """Begin: what is given is told to the trajectory first."""
        given = await asyncio.to_thread(material_of, context)
        index = await asyncio.to_thread(index_of, given.context)
        asker.writer.emit(
            events.RunStarted(
                question=question,
                model=self._settings.model.name,
                sub_model=self._settings.sub_model.name,
                context=facts(index, given),
                budget=self._budget.to_dict(),
                atoll_version=atoll.__version__,
            )
        )
        self._tell_unpriced(asker)
        options = dict(self._settings.environment)
        if options.get("documents") is None:
            options["documents"] = given.documents
        return await self._work(question, given, asker, options)

    def _tell_unpriced(self, asker: Asker) -> None:
        """A limit of dollars holds for no model whose price is not known: that is told."""
        if self._budget.usd is None:
            return
        limit = f"the budget of {budget.told('usd', self._budget.usd)}"
        models = (self._settings.model, self._settings.sub_model)
        for name in sorted({one.name for one in models if one.would_cost(Usage()) is None}):
            asker.writer.emit(events.Refused(what=limit, why=f"{name} has no price: {UNPRICED}"))

    async def _child(self, task: str, context: Any, asker: Asker) -> str:
        """A run within the run: the same sandboxes, but the documents stay the root's."""
        options = {**self._settings.environment, **NOT_A_CHILDS}
        given = Material(context=await asyncio.to_thread(context_of, context))
        return (await self._work(task, given, asker, options)).text

    async def _work(
        self, question: str, given: Material, asker: Asker, options: dict[str, Any]
    ) -> Ending:
        index = await asyncio.to_thread(index_of, given.context)
        others = options.get("documents") != given.documents  # those are in the context too
        chosen = plan(index, others, self._settings.direct_tokens)
        place: dict[str, Any] = {"parent": asker.parent, "depth": asker.depth}
        asker.writer.emit(events.Planned(way=chosen.way, why=chosen.why, **place))
        if chosen.way == "direct":
            text = "" if index is None else self._clean(index.text(0, index.length))
            ending = await self._direct(question, text, asker)
        else:
            ending = await self._explore(question, given, asker, options)
        ending = dataclasses.replace(ending, way=chosen.way, why=chosen.why)
        asker.writer.emit(_final(ending, place))
        return ending

    async def _direct(self, question: str, text: str, asker: Asker) -> Ending:
        """One question, with the whole text in it."""
        asked = prompts.direct_message(question, text) if text else question
        messages = [Message("system", prompts.DIRECT), Message("user", asked)]
        model, most = self._settings.model_at(asker.depth), self._settings.max_tokens
        call = asker.writer.new_call()
        completion = await asker.ask(model, messages, call, most)
        return Ending(how="text", text=completion.text, turns=1)

    async def _explore(
        self, question: str, given: Material, asker: Asker, options: dict[str, Any]
    ) -> Ending:
        """The loop, with a sandbox beside it."""
        subcalls = Subcalls(self._settings, asker, given.context, self._child, self._clean)
        environment = await _made(
            context=given.context,
            on_llm_query=subcalls.llm_query,
            on_rlm_query=subcalls.rlm_query,
            max_concurrency=self._settings.concurrency,
            **options,
        )
        try:
            async with environment as env:
                has_documents = options.get("documents") is not None
                first = self._clean(describe(env.index, given.kind, has_documents))
                return await Loop(self._settings, asker, env).run(question, first)
        finally:
            await subcalls.close()


async def _made(**options: Any) -> REPLEnvironment:
    """An environment, made in a thread, as data is written out for its index; never left open."""
    making = asyncio.ensure_future(asyncio.to_thread(REPLEnvironment, **options))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        with contextlib.suppress(AtollError):
            await (await making).close()
        raise


def _final(ending: Ending, place: dict[str, Any]) -> events.FinalGiven:
    return events.FinalGiven(
        how=ending.how,
        text=ending.text,
        evidence=tuple(dataclasses.asdict(one) for one in ending.evidence),
        coverage={} if ending.coverage is None else ending.coverage.to_dict(),
        forced=ending.forced,
        **place,
    )
