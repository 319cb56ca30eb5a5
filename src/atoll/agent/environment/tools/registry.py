"""The registry of tools: the environment's own and the caller's, by name.

From it come the handlers that guest code reaches by the bridge, the check of their arguments, the
list of functions in a prompt, SHOW_TOOLS(), and the log of calls.

    guest call ──▶ chain: may it be called here? ──▶ prefetched? ──▶ check ──▶ taint ──▶ function
                                                          └─────────────────────▶ log ◀──┘
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import inspect
import time
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.tools import taint
from atoll.agent.environment.tools.invocations import (
    Invocation,
    InvocationLog,
    arguments_of,
    reported_fields,
    result_fields,
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
MAX_THREADS = 32
LEAST_LIKENESS = 0.8
"""Of a name that does not exist to that of a tool, for the tool to be named (difflib)."""
CALLING: ContextVar[str | None] = ContextVar("atoll_calling", default=None)
"""The tool whose function runs in this task or thread."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """A turn: its name, and the chain and the fetched results that its calls belong to."""

    name: str = ""
    chain: Chain | None = None
    """The chain that runs: a turn of structured mode with several calls."""
    prefetcher: Prefetcher | None = None
    """The results of calls that were made before guest code asked for them."""


@dataclass(slots=True, kw_only=True)
class _Call:
    """A call on its way into the log."""

    tool: Tool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    turn: TurnContext
    place: int | None = None
    """Its number in the chain."""
    started: float = field(default_factory=time.perf_counter)
    prefetched: Prefetched | None = None
    answer: Any = None


@dataclass
class Registry:
    """Tools by name, and the log of their calls."""

    _sources: taint.Sources = field(default_factory=taint.Sources)
    _approver: taint.Approver | None = None
    log: InvocationLog = field(default_factory=InvocationLog)
    threads: HandlerThreads = field(default_factory=lambda: HandlerThreads(MAX_THREADS))
    turn: TurnContext = field(default_factory=TurnContext)
    """The turn that runs now."""
    _tools: dict[str, Tool] = field(default_factory=dict)
    _hidden: set[str] = field(default_factory=set)

    def add(self, tools: Iterable[Tool], *, hidden: bool = False) -> None:
        """Add tools; a hidden one can be called but is in no list."""
        for tool in tools:
            if tool.name in self._tools:
                raise ConfigError(
                    f"a tool cannot be called {tool.name!r}: the environment has that name"
                )
            self._tools[tool.name] = tool
            if hidden:
                self._hidden.add(tool.name)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def get(self, name: str) -> Tool | None:
        """Return a tool, or None."""
        return self._tools.get(name)

    def nearest(self, name: str) -> str | None:
        """Return the tool that was meant by a name that does not exist: `Final` is FINAL."""
        shown = {tool.name.lower(): tool.name for tool in self if tool.name not in self._hidden}
        close = difflib.get_close_matches(name.lower(), shown, n=1, cutoff=LEAST_LIKENESS)
        return shown[close[0]] if close else None

    def handlers(self) -> dict[str, Handler]:
        """Return what the bridge calls for each tool: checked and logged."""
        handlers: dict[str, Handler] = {}
        self._sources.enabled = False
        for name, tool in self._tools.items():
            handlers[name] = self.logged(tool)
            self._sources.enabled |= tool.untrusted != "allow"
        return handlers

    def listing(self, without: Collection[str] = ()) -> str:
        """Return the tools for a prompt, one a line: how each is called and what it does."""
        lines = []
        modules: dict[str, int] = {}
        for tool in self._tools.values():
            if tool.module:
                modules[tool.module] = modules.get(tool.module, 0) + 1
            elif tool.name not in self._hidden and tool.name not in without:
                summary = " ".join(tool.summary.split())[:LONGEST_SUMMARY]
                lines.append(f"- {tool.call}: {summary}" if summary else f"- {tool.call}")
        for module, count in modules.items():
            lines.append(
                f"- from tools import {module}: {count} functions; search_tools('words') finds them"
            )
        return "\n".join(lines)

    def logged(self, tool: Tool) -> Handler:
        """Return a function that checks the arguments, calls the tool, and logs the call."""
        waits = tool.untrusted != "allow" or tool.timeout_seconds is not None
        if inspect.iscoroutinefunction(tool.function) or waits:

            @wraps(tool.function)
            async def asked(*args: Any, **kwargs: Any) -> Any:
                if OWN in kwargs:
                    return self._take_report(kwargs[OWN])
                with self._logging(tool, args, kwargs) as call:
                    work = call.prefetched or self.call(tool, args, kwargs)
                    call.answer = await work
                return call.answer

            handler: Handler = asked
        else:

            @wraps(tool.function)
            def called(*args: Any, **kwargs: Any) -> Any:
                if OWN in kwargs:
                    return self._take_report(kwargs[OWN])
                with self._logging(tool, args, kwargs) as call:
                    fetched = call.prefetched
                    call.answer = run(tool, args, kwargs) if fetched is None else fetched.result()
                return call.answer

            handler = called
        handler.__dict__[DESCRIPTION] = getattr(tool, DESCRIPTION)
        return handler

    async def call(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a tool that may wait: for an approver, for a coroutine, for a thread in time."""
        tool.check(args, kwargs)
        if tool.untrusted != "allow":
            origins = await asyncio.to_thread(self._sources.origins, args, kwargs)
            await taint.permit(tool, args, kwargs, origins, self._approver)
        try:
            async with asyncio.timeout(tool.timeout_seconds):
                if not inspect.iscoroutinefunction(tool.function):
                    context = copy_context()
                    return await self.threads.run(
                        lambda: context.run(run_handler, run, (tool, args, kwargs), {})
                    )
                token = CALLING.set(tool.name)
                try:
                    return await tool.function(*args, **kwargs)
                finally:
                    CALLING.reset(token)
        except TimeoutError as exc:
            if tool.timeout_seconds is None or exc.args:
                raise
            late = f"{tool.name} has not answered in {tool.timeout_seconds:g} s"
            raise TimeoutError(f"{late}: the call was given up") from None

    @contextlib.contextmanager
    def _logging(
        self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[_Call]:
        """Refuse a call that its chain does not allow; log how it ends."""
        claimed, turn = kwargs.pop(INDEX, None), self.turn
        call = _Call(tool=tool, args=args, kwargs=kwargs, turn=turn)
        if turn.chain is not None:
            call.place = turn.chain.place_of(tool, claimed)
            if why := turn.chain.refusal(tool, self._tools.get(turn.chain.called[0])):
                self._log(call, "PermissionError")
                raise PermissionError(why)
        outcome = "ok"
        try:
            if turn.prefetcher is not None:
                call.prefetched = turn.prefetcher.take(tool, (args, kwargs))
            yield call
        except BaseException as exc:
            outcome = exc.kind if isinstance(exc, HandlerEndedError) else type(exc).__name__
            if turn.chain is not None:
                turn.chain.failed(call.place)
            raise
        finally:
            self._log(call, outcome)

    def _log(self, call: _Call, outcome: str) -> None:
        """Log a call that has ended, and remember what an untrusted source has returned.

        An answer that leaves the look to guest code gets the number of the call, by which guest
        code reports what it found.
        """
        tool, answer, fetched = call.tool, call.answer, call.prefetched
        is_own = isinstance(answer, dict) and answer.get(ELSEWHERE) is True
        if is_own and answer.get(REPEATED):
            return  # the same call follows, with what the file has
        chain = call.turn.chain
        if chain is not None and not chain.is_chain:
            chain = None
        took = time.perf_counter() - call.started if fetched is None else fetched.seconds
        asks, ended = tool.cost == "model", outcome == "ok"
        entry = Invocation(
            tool=tool.name,
            caller_type="code" if chain is None else "chain",
            chain_id=None if chain is None else chain.chain_id,
            chain_index=None if chain is None else call.place,
            parent=call.turn.name,
            sizes=sizes(call.args, call.kwargs),
            duration_ms=took * 1000,
            tokens_in=tokens(*call.args) if asks else 0,
            tokens_out=tokens(_text(answer)) if asks else 0,
            outcome=outcome,
            prefetched=fetched is not None,
            arguments=arguments_of(tool.function, call.args, call.kwargs),
            **result_fields(None if is_own else answer),
        )
        if ended and tool.source:
            self._sources.note(tool.name, answer)
        number = self.log.add(entry, explored=tool.explores and ended and shows(answer))
        if is_own:
            self.log.expect_result(number, explores=tool.explores)
            call.answer = {**answer, "call": number}

    def _take_report(self, report: Any) -> None:
        """Log what guest code found in a file of its own, which is as true as guest code is."""
        try:
            number, fields = int(report["call"]), reported_fields(report)
        except (LookupError, TypeError, ValueError):
            raise ValueError(
                "a report of a look into an own file has call, text and size"
            ) from None
        self.log.report_result(number, **fields)


def run(tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Check the arguments and call a function that blocks."""
    tool.check(args, kwargs)
    token = CALLING.set(tool.name)
    try:
        return tool.function(*args, **kwargs)
    finally:
        CALLING.reset(token)


def _text(answer: Any) -> Any:
    """Return the text of an answer; one with attributes is a dict that begins with its text."""
    return next(iter(answer.values()), "") if isinstance(answer, dict) else answer
