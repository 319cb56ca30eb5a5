"""One run: plans how a question is worked on, and works on it; a child of it is one too."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import atoll
from atoll.environment.core import REPLEnvironment
from atoll.environment.setting import context_of, index_of
from atoll.rlm import prompts
from atoll.rlm.describe import describe, facts
from atoll.rlm.loop import Ending, Loop
from atoll.rlm.material import Material, material_of
from atoll.rlm.models.types import Message
from atoll.rlm.plan import plan
from atoll.rlm.subcalls import Lanes, Subcalls
from atoll.rlm.trajectory import events

if TYPE_CHECKING:
    from atoll.rlm.asking import Asker
    from atoll.rlm.budget import Budget
    from atoll.rlm.settings import Settings


class Run:
    """A question and all that is asked beneath it."""

    def __init__(self, settings: Settings, budget: Budget) -> None:
        self._settings, self._budget = settings, budget
        self._lanes = Lanes(settings.concurrency)

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
        options = dict(self._settings.environment)
        if options.get("documents") is None:
            options["documents"] = given.documents
        return await self._work(question, given, asker, options)

    async def _child(self, task: str, context: Any, asker: Asker) -> str:
        """A run within the run: the same sandboxes, but the documents stay the root's."""
        options = {**self._settings.environment, "documents": None, "submit_fields": None}
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
            text = "" if index is None else index.text(0, index.length)
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
        model = self._settings.model if asker.depth == 0 else self._settings.sub_model
        call, most = asker.writer.new_call(), self._settings.max_tokens
        completion = await asker.ask(model, messages, call, most)
        return Ending(how="text", text=completion.text, turns=1)

    async def _explore(
        self, question: str, given: Material, asker: Asker, options: dict[str, Any]
    ) -> Ending:
        """The loop, with a sandbox beside it."""
        subcalls = Subcalls(self._settings, asker, self._lanes, given.context, self._child)
        environment = REPLEnvironment(
            context=given.context,
            on_llm_query=subcalls.llm_query,
            on_rlm_query=subcalls.rlm_query,
            max_concurrency=self._settings.concurrency,
            **options,
        )
        try:
            async with environment as env:
                has_documents = options.get("documents") is not None
                first = describe(env.index, given.kind, has_documents)
                return await Loop(self._settings, asker, env).run(question, first)
        finally:
            await subcalls.close()


def _final(ending: Ending, place: dict[str, Any]) -> events.FinalGiven:
    return events.FinalGiven(
        how=ending.how,
        text=ending.text,
        evidence=tuple(dataclasses.asdict(one) for one in ending.evidence),
        coverage={} if ending.coverage is None else ending.coverage.to_dict(),
        forced=ending.forced,
        **place,
    )
