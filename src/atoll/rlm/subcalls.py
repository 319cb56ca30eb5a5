"""llm_query and rlm_query on the host: side by side, on one account, identical ones asked once."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from atoll.context import Context
from atoll.rlm.asking import Asker, Totals, told
from atoll.rlm.models.types import Message
from atoll.rlm.trajectory.events import SubcallEnded, SubcallStarted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.rlm.budget import Account
    from atoll.rlm.settings import Settings

    Child = Callable[[str, Any, Asker], Awaitable[str]]

CHILD_SHARE = 0.5
"""Of what is left of a budget, a child may use so much."""
LEAST_SECONDS = 1.0
SHOWN = 20_000
"""Characters of a context that an rlm_query shows when it became an llm_query."""


class Lanes:
    """How many sub-calls of a run may be under way, over all its depths."""

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)

    async def __aenter__(self) -> None:
        await self._free.acquire()

    async def __aexit__(self, *_exc: object) -> None:
        self._free.release()


class Subcalls:
    """The sub-calls that one loop's cells make."""

    def __init__(
        self,
        settings: Settings,
        asker: Asker,
        lanes: Lanes,
        context: Any,
        child: Child,
    ) -> None:
        self._settings, self._asker, self._lanes = settings, asker, lanes
        self._context, self._child = context, child
        self._asked: dict[str, tuple[str, asyncio.Task[str]]] = {}

    async def llm_query(self, prompt: str) -> str:
        """A model's answer; an error is this call's alone."""
        call = self._asker.writer.new_call()
        earlier = self._asked.get(prompt)
        if earlier is not None and not _failed(earlier[1]):
            self._begin(call, "llm_query", prompt, shared_with=earlier[0])
            return await self._ended(call, asyncio.shield(earlier[1]), None)
        self._begin(call, "llm_query", prompt)
        sub = self._below(call, self._asker.account)
        task = asyncio.create_task(self._ended(call, self._answer(sub, prompt), sub))
        self._asked[prompt] = (call, task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            raise

    async def rlm_query(self, task: str, context: Any) -> str:
        """A run of its own on `context`; where depth or budget forbid one, an llm_query."""
        call = self._asker.writer.new_call()
        shared = isinstance(self._context, Context) and context is self._context.value
        given = self._context if shared else context
        self._begin(call, "rlm_query", task, context=_facts(given, shared=shared))
        if self._forbidden():
            sub = self._below(call, self._asker.account)
            work = self._answer(sub, _with_text(task, given))
            return await self._ended(call, work, sub, downgraded=True)
        sub = self._below(call, self._asker.account.share(CHILD_SHARE))
        return await self._ended(call, self._child(task, given, sub), sub)

    async def close(self) -> None:
        """End what is still under way."""
        tasks = [task for _, task in self._asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _below(self, call: str, account: Account) -> Asker:
        return Asker(
            account=account,
            writer=self._asker.writer,
            parent=call,
            depth=self._asker.depth + 1,
            above=self._asker,
            temperature=self._asker.temperature,
        )

    def _forbidden(self) -> bool:
        """Whether no run may be made within this one."""
        account = self._asker.account
        too_deep = self._asker.depth >= self._settings.max_depth
        return too_deep or account.left("seconds") * CHILD_SHARE < LEAST_SECONDS

    async def _answer(self, asker: Asker, prompt: str) -> str:
        async with self._lanes:
            completion = await asker.ask(
                self._settings.sub_model,
                [Message("user", prompt)],
                asker.writer.new_call(),
                self._settings.max_tokens,
            )
        return completion.text

    def _begin(self, call: str, kind: str, prompt: str, **facts: Any) -> None:
        self._asker.writer.emit(
            SubcallStarted(
                parent=self._asker.parent,
                depth=self._asker.depth,
                call=call,
                kind=kind,
                prompt=prompt,
                **facts,
            )
        )

    async def _ended(
        self, call: str, work: Awaitable[str], asker: Asker | None, *, downgraded: bool = False
    ) -> str:
        """The answer, and how it ended told to the trajectory: also how it failed."""
        answer, error = "", None
        try:
            answer = await work
        except asyncio.CancelledError:
            error = "cancelled"
            raise
        except Exception as exc:
            error = f"{type(exc).__name__}: {exc}"
            raise
        else:
            return answer
        finally:
            totals = Totals() if asker is None else asker.totals
            self._asker.writer.emit(
                SubcallEnded(
                    parent=self._asker.parent,
                    depth=self._asker.depth,
                    call=call,
                    answer=answer,
                    error=error,
                    usage=told(totals.usage),
                    usd=totals.usd,
                    downgraded=downgraded,
                )
            )


def _failed(task: asyncio.Task[str]) -> bool:
    """Whether a call is over, without an answer that another could be given too."""
    return task.done() and (task.cancelled() or task.exception() is not None)


def _facts(context: Any, *, shared: bool) -> dict[str, Any] | None:
    if context is None:
        return None
    length = context.length if isinstance(context, Context) else len(_text(context))
    return {"length": length, "shared": shared}


def _with_text(task: str, context: Any) -> str:
    text = _text(context)
    cut = f"\n[{len(text) - SHOWN:,} more characters]" if len(text) > SHOWN else ""
    return f"{task}\n\nText:\n<<<\n{text[:SHOWN]}{cut}\n>>>" if text else task


def _text(context: Any) -> str:
    value = context.value if isinstance(context, Context) else context
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)
