"""The registry of tools: the environment's own and the caller's, by name.

From it come the handlers that guest code reaches by the bridge, the check of their arguments, the
list of functions in a prompt, SHOW_TOOLS(), and the log of calls.

    guest call ──▶ chain: may it be called here? ──▶ prefetched? ──▶ check ──▶ taint ──▶ function
                                                          └─────────────────────▶ log ◀──┘
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import inspect
import time
from contextvars import ContextVar, copy_context
from functools import wraps
from typing import TYPE_CHECKING, Any, Self

from atoll.agent.environment.research.texts import arguments_of, reported_fields, result_fields
from atoll.agent.environment.tools import taint
from atoll.agent.environment.tools.invocations import (
    Invocation,
    InvocationLog,
    shows,
    sizes,
    tokens,
)
from atoll.errors import ConfigError
from atoll.guest.agent.chain import INDEX
from atoll.guest.agent.explorer import ELSEWHERE, OWN, REPEATED
from atoll.sandbox.bridge import HandlerEndedError, HandlerThreads, run_handler
from atoll.sandbox.signatures import DESCRIPTION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from atoll.agent.environment.chains.prefetch import Prefetched, Prefetcher
    from atoll.agent.environment.chains.turn import Chain
    from atoll.config import Handler
    from atoll.sandbox.tools import Tool

LONGEST_SUMMARY = 200
MOST_THREADS = 32
LEAST_LIKENESS = 0.8
"""Of a name that does not exist to that of a tool, for the tool to be named (difflib)."""
CALLING: ContextVar[str | None] = ContextVar("atoll_calling", default=None)
"""The tool whose function runs in this task or thread."""


class Registry:
    """Tools by name, and the log of their calls."""

    def __init__(
        self, sources: taint.Sources | None = None, approver: taint.Approver | None = None
    ) -> None:
        self.log = InvocationLog()
        self.threads = HandlerThreads(MOST_THREADS)
        self.chain: Chain | None = None
        """The chain that runs now: a turn of structured mode with several calls."""
        self.prefetcher: Prefetcher | None = None
        """The results that were fetched for the turn that runs now."""
        self._sources, self._approver = sources or taint.Sources(None), approver
        self._tools: dict[str, Tool] = {}
        self._hidden: set[str] = set()

    def add(self, tools: Iterable[Tool], *, hidden: bool = False) -> None:
        """Add tools; a hidden one can be called but is in no list."""
        for one in tools:
            if one.name in self._tools:
                raise ConfigError(
                    f"a tool cannot be called {one.name!r}: the environment has that name"
                )
            self._tools[one.name] = one
            if hidden:
                self._hidden.add(one.name)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def get(self, name: str) -> Tool | None:
        """Return a tool, or None."""
        return self._tools.get(name)

    def nearest(self, name: str) -> str | None:
        """Return the tool that was meant by a name that does not exist: `Final` is FINAL."""
        shown = {one.name.lower(): one.name for one in self if one.name not in self._hidden}
        close = difflib.get_close_matches(name.lower(), shown, n=1, cutoff=LEAST_LIKENESS)
        return shown[close[0]] if close else None

    def handlers(self) -> dict[str, Handler]:
        """Return what the bridge calls for each tool: checked and logged."""
        self._sources.enabled = any(one.untrusted != "allow" for one in self)
        return {name: self.logged(one) for name, one in self._tools.items()}

    def listing(self, without: Collection[str] = ()) -> str:
        """Return the tools for a prompt, one a line: how each is called and what it does."""
        shown = (one for one in self if one.name not in self._hidden | set(without))
        return "\n".join(
            f"- {one.call}: {_one_line(one.summary)}" if one.summary else f"- {one.call}"
            for one in shown
        )

    def close(self) -> None:
        """End the threads; a tool that still runs is not waited for."""
        self.threads.close()

    def logged(self, one: Tool) -> Handler:
        """Return a function that checks the arguments, calls the tool, and logs the call."""
        waits = one.untrusted != "allow" or one.timeout_seconds is not None
        if inspect.iscoroutinefunction(one.function) or waits:

            @wraps(one.function)
            async def asked(*args: Any, **kwargs: Any) -> Any:
                if OWN in kwargs:
                    return self._take_report(kwargs[OWN])
                with _Entry(self, one, args, kwargs) as entry:
                    found = entry.prefetched
                    entry.answer = await (self.call(one, *entry.given) if found is None else found)
                return entry.answer

            handler: Handler = asked
        else:

            @wraps(one.function)
            def called(*args: Any, **kwargs: Any) -> Any:
                if OWN in kwargs:
                    return self._take_report(kwargs[OWN])
                with _Entry(self, one, args, kwargs) as entry:
                    found = entry.prefetched
                    entry.answer = run(one, *entry.given) if found is None else found.result()
                return entry.answer

            handler = called
        handler.__dict__[DESCRIPTION] = getattr(one, DESCRIPTION)
        return handler

    async def call(self, one: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a tool that may wait: for an approver, for a coroutine, for a thread in time."""
        one.check(args, kwargs)
        if one.untrusted != "allow":
            origins = await asyncio.to_thread(self._sources.origins, args, kwargs)
            await taint.permit(one, args, kwargs, origins, self._approver)
        try:
            async with asyncio.timeout(one.timeout_seconds):
                if not inspect.iscoroutinefunction(one.function):
                    context = copy_context()
                    return await self.threads.run(
                        lambda: context.run(run_handler, run, (one, args, kwargs), {})
                    )
                token = CALLING.set(one.name)
                try:
                    return await one.function(*args, **kwargs)
                finally:
                    CALLING.reset(token)
        except TimeoutError as exc:
            if one.timeout_seconds is None or exc.args:
                raise
            late = f"{one.name} has not answered in {one.timeout_seconds:g} s"
            raise TimeoutError(f"{late}: the call was given up") from None

    def settle(self, one: Tool, entry: Invocation, answer: Any) -> Any:
        """Log a call that has ended, and remember what an untrusted source has returned.

        Return the answer. If it leaves the look to guest code, it has the number of the call too,
        by which guest code reports what it found.
        """
        ended = entry.outcome == "ok"
        is_own = isinstance(answer, dict) and answer.get(ELSEWHERE) is True
        if is_own and answer.get(REPEATED):
            return answer  # the same call follows, with what the file has
        if is_own:
            entry = dataclasses.replace(entry, **result_fields(None))
        if ended and one.source:
            self._sources.note(one.name, answer)
        number = self.log.add(entry, explored=one.explores and ended and shows(answer))
        if not is_own:
            return answer
        self.log.expect_result(number, explores=one.explores)
        return {**answer, "call": number}

    def _take_report(self, told: Any) -> None:
        """Log what guest code found in a file of its own, which is as true as guest code is."""
        try:
            number, fields = int(told["call"]), reported_fields(told)
        except (LookupError, TypeError, ValueError):
            raise ValueError(
                "a report of a look into an own file has call, text and size"
            ) from None
        self.log.report_result(number, **fields)


def run(one: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Check the arguments and call a function that blocks."""
    one.check(args, kwargs)
    token = CALLING.set(one.name)
    try:
        return one.function(*args, **kwargs)
    finally:
        CALLING.reset(token)


class _Entry:
    """One call on its way into the log."""

    def __init__(
        self, registry: Registry, one: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._registry, self._tool = registry, one
        self._index = kwargs.pop(INDEX, None)
        self.given = args, kwargs
        self.answer: Any = None
        self.prefetched: Prefetched | None = None

    def __enter__(self) -> Self:
        registry, one = self._registry, self._tool
        self._parent, self._started = registry.log.parent, time.perf_counter()
        self._chain, self._place = registry.chain, None
        if self._chain is not None:
            self._place = self._chain.place_of(one, self._index)
            first = registry.get(self._chain.called[0])
            if why := self._chain.refusal(one, first):
                self._log("PermissionError")
                raise PermissionError(why)
        if registry.prefetcher is not None:
            self.prefetched = registry.prefetcher.take(one, *self.given)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        named = (
            error.kind if isinstance(error, HandlerEndedError) else getattr(kind, "__name__", "")
        )
        if named and self._chain is not None:
            self._chain.failed(self._place)
        self._log(named or "ok")

    def _log(self, outcome: str) -> None:
        one, (args, kwargs), found = self._tool, self.given, self.prefetched
        chain = self._chain if self._chain is not None and self._chain.is_chain else None
        asks = one.cost == "model"
        took = time.perf_counter() - self._started if found is None else found.seconds
        entry = Invocation(
            tool=one.name,
            caller_type="code" if chain is None else "chain",
            chain_id=None if chain is None else chain.chain_id,
            chain_index=None if chain is None else self._place,
            parent=self._parent,
            sizes=sizes(args, kwargs),
            duration_ms=took * 1000,
            tokens_in=tokens(*args) if asks else 0,
            tokens_out=tokens(_text(self.answer)) if asks else 0,
            outcome=outcome,
            prefetched=found is not None,
            arguments=arguments_of(one.function, args, kwargs),
            **result_fields(self.answer),
        )
        self.answer = self._registry.settle(one, entry, self.answer)


def _text(answer: Any) -> Any:
    """Return the text of an answer; one with attributes is a dict that begins with its text."""
    return next(iter(answer.values()), "") if isinstance(answer, dict) else answer


def _one_line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_SUMMARY]
