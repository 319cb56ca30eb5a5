"""llm_query and rlm_query on the host: side by side, on one account, identical ones asked once."""

from __future__ import annotations

import asyncio
import hashlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from atoll.context import Context
from atoll.errors import ConfigError
from atoll.rlm.asking import Asker, Totals
from atoll.rlm.models.types import Message
from atoll.rlm.telling import Telling

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from atoll.rlm.budget import Account
    from atoll.rlm.settings import Settings

    Child = Callable[[str, Any, Asker], Awaitable[str]]
    Start = Callable[[Telling], Coroutine[Any, Any, str]]

CHILD_SHARE = 0.5
"""Of what is left of a budget, a child may use so much."""
LEAST_SECONDS = 1.0
SHOWN = 20_000
"""Characters of a context that an rlm_query shows when it became an llm_query."""
LONGEST_PROMPT = 1_000_000
LONGEST_TASK = 20_000


class Work:
    """A call under way or done, and those who wait for it: it ends when the last of them goes."""

    def __init__(self, call: str, task: asyncio.Task[str]) -> None:
        self.call, self._task, self._waiting = call, task, 0

    @property
    def failed(self) -> bool:
        """Whether it gives no answer that another could be given too."""
        if self._task.cancelling() or self._task.cancelled():
            return True
        return self._task.done() and self._task.exception() is not None

    async def answer(self) -> str:
        """What it gives."""
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
        settings: Settings,
        asker: Asker,
        context: Any,
        child: Child,
        clean: Callable[[str], str],
    ) -> None:
        self._settings, self._asker = settings, asker
        self._context, self._child, self._clean = context, child, clean
        self._works: dict[bytes, Work] = {}
        self._tasks: set[asyncio.Task[str]] = set()

    async def llm_query(self, prompt: str) -> str:
        """A model's answer; an error is this call's alone."""
        _check_length("prompt", prompt, LONGEST_PROMPT)
        key, start = _digest("llm_query", prompt), partial(self._plain, prompt)
        return await self._once(key, start, kind="llm_query", prompt=prompt)

    async def rlm_query(self, task: str, context: Any) -> str:
        """A run of its own on `context`; where depth or budget forbid one, an llm_query."""
        _check_length("task", task, LONGEST_TASK)
        shared = context is not None and context is _value(self._context)
        given = self._context if shared else context
        key, facts = await asyncio.to_thread(_identity, task, given, shared=shared)
        start = partial(self._recursive, task, given)
        return await self._once(key, start, kind="rlm_query", prompt=task, context=facts)

    async def close(self) -> None:
        """End what is still under way."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _once(self, key: bytes, start: Start, **facts: Any) -> str:
        """The answer of an identical call if there is one, or will be; else of this one."""
        known = self._works.get(key)
        if known is not None and not known.failed:
            telling = Telling.of(self._asker, shared_with=known.call, **facts)
            return await telling.end(known.answer(), Totals())
        telling = Telling.of(self._asker, **facts)
        task = asyncio.create_task(start(telling))
        self._tasks.add(task)
        task.add_done_callback(self._over)
        known = self._works[key] = Work(telling.call, task)
        return await known.answer()

    def _over(self, task: asyncio.Task[str]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may be gone: that is no fault

    async def _plain(self, prompt: str, telling: Telling, *, downgraded: bool = False) -> str:
        sub = self._below(telling.call, self._asker.account)
        return await telling.end(self._answer(sub, prompt), sub.totals, downgraded=downgraded)

    async def _recursive(self, task: str, context: Any, telling: Telling) -> str:
        if self._forbidden():
            prompt = await asyncio.to_thread(_with_text, task, context)
            return await self._plain(self._clean(prompt), telling, downgraded=True)
        async with self._asker.lanes.runs(self._asker.depth + 1):
            sub = self._below(telling.call, self._asker.account.share(CHILD_SHARE))
            return await telling.end(self._child(task, context, sub), sub.totals)

    def _below(self, call: str, account: Account) -> Asker:
        return Asker(
            account=account,
            writer=self._asker.writer,
            lanes=self._asker.lanes,
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
        completion = await asker.ask(
            self._settings.sub_model,
            [Message("user", prompt)],
            asker.writer.new_call(),
            self._settings.max_tokens,
        )
        return completion.text


def _check_length(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise ConfigError(
            f"the {what} has {len(text):,} characters, of at most {most:,}: "
            "cut it into pieces, or give the text to rlm_query(task, ctx)"
        )


def _identity(task: str, context: Any, *, shared: bool) -> tuple[bytes, dict[str, Any] | None]:
    """What makes an rlm_query the same as another, and what is told of its context."""
    if context is None:
        return _digest("rlm_query", task, "none"), None
    if shared and isinstance(context, Context):
        return _digest("rlm_query", task), {"length": context.length, "shared": True}
    text = _text(context)
    key = _digest("rlm_query", task, type(context).__name__, text)
    return key, {"length": len(text), "shared": shared}


def _digest(*parts: str) -> bytes:
    """A name for texts that takes no more room, however long they are."""
    found = hashlib.sha256()
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part.encode("utf-8", "surrogatepass"))
    return found.digest()


def _with_text(task: str, context: Any) -> str:
    text = _text(context)
    cut = f"\n[{len(text) - SHOWN:,} more characters]" if len(text) > SHOWN else ""
    return f"{task}\n\nText:\n<<<\n{text[:SHOWN]}{cut}\n>>>" if text else task


def _text(context: Any) -> str:
    value = _value(context)
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)


def _value(context: Any) -> Any:
    return context.value if isinstance(context, Context) else context
