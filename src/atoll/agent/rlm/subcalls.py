"""llm_query and rlm_query on the host: side by side, on one account, identical ones asked once."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import hashlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.tools.registry import CALLING
from atoll.agent.rlm.model_calls import ModelCalls, SubcallEvents, Totals
from atoll.agent.rlm.models.types import Message
from atoll.agent.rlm.types import Ended, RunResult
from atoll.errors import ConfigError, ModelReplyError
from atoll.guest.agent.bridge import ANSWER_KEY
from atoll.sandbox.context import Context
from atoll.text.amounts import counted
from atoll.text.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from atoll.agent.rlm.budget import Account
    from atoll.agent.rlm.options import RLMConfig
    from atoll.search.coverage import CoverageLog

    Child = Callable[[str, Any, ModelCalls], Awaitable[RunResult]]
    Start = Callable[[SubcallEvents], Coroutine[Any, Any, RunResult]]

CHILD_SHARE = 0.5
"""Of what is left of a budget, a child may use so much."""
LEAST_SECONDS, LEAST_CALLS = 1.0, 2
"""A run is not begun with less: it needs one turn, and the call kept for the last answer."""
SHOWN = 20_000
"""Characters of a context that an rlm_query shows when it became an llm_query."""
LONGEST_PROMPT = 1_000_000
LONGEST_TASK = 20_000
MAX_SAMPLES = 100
CUT_ANSWER = "\n[the answer was cut here, after {tokens:,} tokens]"


class Work:
    """A call under way or done, and those who wait for it: it ends when the last of them goes."""

    def __init__(self, call: str, task: asyncio.Task[RunResult]) -> None:
        self.call, self._task, self._waiting = call, task, 0

    @property
    def failed(self) -> bool:
        """Whether it gives no answer that another could be given too."""
        if self._task.cancelling() or self._task.cancelled():
            return True
        return self._task.done() and self._task.exception() is not None

    async def answer(self) -> RunResult:
        """Return what it gives."""
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._task.cancel()


class Subcalls:
    """The sub-calls that one loop's cells make; `clean` takes secrets out of a context's text."""

    def __init__(
        self,
        config: RLMConfig,
        calls: ModelCalls,
        context: Any,
        child: Child,
        clean: Callable[[str], str],
    ) -> None:
        self._config, self._calls = config, calls
        self._context, self._child, self._clean = context, child, clean
        self._works: dict[bytes, Work] = {}
        self._tasks: set[asyncio.Task[RunResult]] = set()
        self._notes: list[str] = []
        self._forced: dict[str, RunResult] = {}
        self._unreported_forced: list[RunResult] = []
        self.ledger: CoverageLog | None = None
        """What the loop has seen of its context; children that share the context add to it."""

    async def llm_query(self, prompt: str, samples: int = 1) -> str | list[str]:
        """Return a model's answer, or so many samples of it; an error is this call's alone."""
        _check_length("prompt", prompt, LONGEST_PROMPT)
        if samples == 1:
            return await self._sample(prompt, 0)
        if not isinstance(samples, int) or not 0 < samples <= MAX_SAMPLES:
            raise ConfigError(f"samples must be a number from 1 to {MAX_SAMPLES}, not {samples!r}")
        return await asyncio.gather(*(self._sample(prompt, n) for n in range(samples)))

    async def _sample(self, prompt: str, number: int) -> str:
        """Return one answer; identical prompts are asked once for each number."""
        key, start = _digest("llm_query", prompt, str(number)), partial(self._plain, prompt)
        return (await self._once(key, start, kind="llm_query", prompt=prompt)).text

    async def rlm_query(self, task: str, context: Any) -> dict[str, object]:
        """Run the task on `context` as a run of its own; where that is not allowed, an llm_query.

        A run that ends without an answer is an error. The guest makes a text with attributes of
        what is returned.
        """
        _check_length("task", task, LONGEST_TASK)
        shared = context is not None and context is _value(self._context)
        given = self._context if shared else context
        key, facts = await asyncio.to_thread(_identity, task, given, shared=shared)
        start = partial(self._recursive, task, given)
        ending = await self._once(key, start, kind="rlm_query", prompt=task, context=facts)
        if shared and ending.ledger is not None and self.ledger is not None:
            self.ledger.merge(ending.ledger)
        return self._handed_up(ending)

    def notes(self) -> list[str]:
        """Return what a model has to know of the sub-calls since the last time, and forget it."""
        notes, self._notes = list(dict.fromkeys(self._notes)), []
        return notes

    def begin_turn(self) -> None:
        """Note that the model has been told of the runs below that ended so far."""
        self._unreported_forced = []

    def unsure(self, text: str) -> tuple[Ended, str] | None:
        """Return how a run below ended, and why, if it was forced or refused and this rests on it.

        It does if the text is the run's answer, or if the model was not told of that run before.
        """
        if ending := self._forced.get(text.strip()):
            return ending.ended, f"it is the answer of an rlm_query that was {ending.ended}"
        if not self._unreported_forced:
            return None
        ended, many = (
            self._unreported_forced[0].ended,
            counted(len(self._unreported_forced), "answers"),
        )
        return ended, f"it was given in one turn with {many} of rlm_query that ended as {ended}"

    async def close(self) -> None:
        """Cancel the calls that still run."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _handed_up(self, ending: RunResult) -> dict[str, object]:
        if ending.ended is Ended.UNANSWERED:
            raise ModelReplyError(f"the run ended without an answer: {ending.reason}")
        if ending.ended is not Ended.ANSWERED:
            self._forced[ending.text.strip()] = ending
            self._unreported_forced.append(ending)
            self._notes.append(f"an answer of rlm_query is {ending.ended}: {ending.reason}")
        return {
            ANSWER_KEY: ending.text,
            "value": ending.value,
            "ended": ending.ended.value,
            "reason": ending.reason,
            "evidence": [dataclasses.asdict(quote) for quote in ending.evidence],
            "coverage": None if ending.coverage is None else ending.coverage.to_dict(),
        }

    async def _once(self, key: bytes, start: Start, **facts: Any) -> RunResult:
        """Return the answer of an identical call if there is one, or will be; else of this one."""
        known = self._works.get(key)
        if known is not None and not known.failed:
            events = SubcallEvents.of(self._calls, shared_with=known.call, **facts)
            return await events.end(known.answer(), Totals())
        events = SubcallEvents.of(self._calls, **facts)
        around = contextvars.copy_context()
        around.run(CALLING.set, None)  # a run inside a tool call has an environment of its own
        task = asyncio.create_task(start(events), context=around)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        known = self._works[key] = Work(events.call, task)
        return await known.answer()

    def _over(self, task: asyncio.Task[RunResult]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # those who asked may be gone: that is not a fault

    async def _plain(
        self, prompt: str, events: SubcallEvents, *, downgraded: bool = False
    ) -> RunResult:
        sub = self._below(events.call, self._calls.account)
        return await events.end(self._answer(sub, prompt), sub.totals, downgraded=downgraded)

    async def _recursive(self, task: str, context: Any, events: SubcallEvents) -> RunResult:
        if self._forbidden():
            text = await asyncio.to_thread(_text, context)
            if len(text) > SHOWN:
                self._notes.append(
                    f"rlm_query was answered from the first {SHOWN:,} of {len(text):,} characters: "
                    "no run inside this run is allowed"
                )
            prompt = await asyncio.to_thread(self._clean, _with_text(task, text))
            return await self._plain(prompt, events, downgraded=True)
        async with self._calls.concurrency.runs(self._calls.depth + 1):
            sub = self._below(events.call, self._calls.account.share(CHILD_SHARE))
            return await events.end(self._child(task, context, sub), sub.totals)

    def _below(self, call: str, account: Account) -> ModelCalls:
        return ModelCalls(
            models=self._calls.models,
            account=account,
            writer=self._calls.writer,
            concurrency=self._calls.concurrency,
            parent=call,
            depth=self._calls.depth + 1,
            above=self._calls,
            temperature=self._calls.temperature,
        )

    def _forbidden(self) -> bool:
        """Return whether no run may be made within this one."""
        account = self._calls.account
        too_deep = self._calls.depth >= self._config.max_depth
        too_late = account.left("seconds") * CHILD_SHARE < LEAST_SECONDS
        return too_deep or too_late or account.left("calls") * CHILD_SHARE < LEAST_CALLS

    async def _answer(self, calls: ModelCalls, prompt: str) -> RunResult:
        message, most = Message("user", prompt), self._config.max_tokens
        completion = await calls.ask(calls.models.sub, [message], most)
        tokens = completion.usage.output_tokens
        if not completion.text.strip():
            raise ModelReplyError(f"the answer of the model is empty, after {tokens:,} tokens")
        cut = CUT_ANSWER.format(tokens=tokens) if completion.finish == "length" else ""
        return RunResult(text=completion.text + cut)


def _check_length(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise ConfigError(
            f"the {what} has {len(text):,} characters, of at most {most:,}: "
            "cut it into pieces, or give the text to rlm_query(task, ctx)"
        )


def _identity(task: str, context: Any, *, shared: bool) -> tuple[bytes, dict[str, object] | None]:
    """Return what makes an rlm_query the same as another, and what is told of its context."""
    if context is None:
        return _digest("rlm_query", task, "none"), None
    if shared and isinstance(context, Context):
        return _digest("rlm_query", task), {"length": context.length, "shared": True}
    text = _text(context)
    key = _digest("rlm_query", task, type(context).__name__, text)
    return key, {"length": len(text), "shared": shared}


def _digest(*parts: str) -> bytes:
    """Return a key for texts that takes no more room, however long they are."""
    result = hashlib.sha256()
    for part in parts:
        result.update(b"%d:" % len(part))
        result.update(part.encode("utf-8", "surrogatepass"))
    return result.digest()


def _with_text(task: str, text: str) -> str:
    if not text:
        return task
    cut = f"\n[{len(text) - SHOWN:,} more characters are not shown]" if len(text) > SHOWN else ""
    return f"{task}\n\n{quoted('text', text[:SHOWN])}{cut}"


def _text(context: Any) -> str:
    value = _value(context)
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)


def _value(context: Any) -> Any:
    return context.value if isinstance(context, Context) else context
