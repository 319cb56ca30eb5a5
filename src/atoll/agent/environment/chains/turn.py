"""Structured mode: the calls of a cell are found first, checked as a chain, and run in waves.

    code ──▶ calls, by AST ──▶ gate: may they be in one turn? ──▶ seq · parallel · dep ──▶ sandbox
                                    └─ no: refused, with what to do; nothing has run

One call is not a chain. The gate is asked once more by every call that is made, from the second
one of a turn on, since code can hide a call from a reader: by another name, by `exec`, in a loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.chains.prefetch import start_prefetch
from atoll.agent.environment.chains.waves import (
    ROUTING,
    UNKNOWN,
    AmbiguousError,
    find_calls,
    parse,
    plan,
)
from atoll.agent.environment.tools.registry import TurnContext
from atoll.concurrency import forks
from atoll.sandbox import guard
from atoll.types import Outcome, SandboxResult

if TYPE_CHECKING:
    import ast

    from atoll.agent.environment.chains.waves import ToolCall, WavePlan
    from atoll.agent.environment.options import EnvironmentConfig
    from atoll.agent.environment.tools.registry import Registry
    from atoll.sandbox.base import BaseSandbox
    from atoll.sandbox.tools import Tool

NO_THREADS = ("wasm", "pyodide")
"""Backends whose guests cannot start threads, in which the calls of a wave are made."""
ALONE = "call it in a turn of its own"
ERROR_TYPE = "ChainRefused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainReport:
    """How a turn of structured mode was run."""

    chain_id: str | None = None
    """`chain-3` for turn 3; None: it made fewer than two calls, and was no chain."""
    mode: str = "seq"
    """What was asked for: `seq` or `dep`."""
    mode_used: str = "seq"
    """`seq`, `parallel` (all calls are read-only, side by side) or `dep`."""
    fallback_to_seq: bool = False
    why: str = ""
    """Why it fell back, or was refused."""
    tools: tuple[str, ...] = ()
    """The calls that were found, in the order of the source; if code hid some, those made."""
    waves: tuple[tuple[int, ...], ...] = ()
    """Which of them ran side by side, by their numbers."""
    refused: bool = False
    """Whether the gate refused a call: before all others or, if code hid it, when it was made."""
    stopped_at: int | None = None
    """The first call that failed; what depends on it did not run."""

    def to_dict(self) -> dict[str, object]:
        """Return the fields as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True, kw_only=True)
class Chain:
    """The chain that runs now: numbers its calls, and refuses those that may not be in it."""

    chain_id: str
    planned: tuple[str, ...] = ()
    """The tools of a plan of waves, whose calls say which of them they are."""
    found: bool = True
    """Whether the source has several calls; else the second call makes it a chain."""
    stopped_at: int | None = None
    refused: str = ""
    """Why a call was refused."""
    called: list[str] = field(default_factory=list)
    """The tools that were called, in order."""
    _count: int = 0
    _open: set[int] = field(default_factory=set)
    _lock: forks.Lock = field(default_factory=forks.new_lock)

    def __post_init__(self) -> None:
        self._open = set(range(len(self.planned)))

    @property
    def is_chain(self) -> bool:
        """Whether the turn has several calls, as far as is known by now."""
        return self.found or len(self.called) > 1

    def place_of(self, tool: Tool, claimed: Any) -> int:
        """Return the number of a call: what the guest says, if the plan has such a call there."""
        with self._lock:
            self.called.append(tool.name)
            places = [at for at, name in enumerate(self.planned) if name == tool.name]
            if type(claimed) is int and claimed in places:
                self._open.discard(claimed)
                return claimed
            result = next((at for at in places if at in self._open), None)
            if result is not None:
                self._open.discard(result)
                return result
            self._count += 1
            return len(self.planned) + self._count - 1

    def refusal(self, tool: Tool, first: Tool | None) -> str | None:
        """Return why a tool may not be called now; None if it may.

        `first` is the tool that was called first in this turn: one that is not for chains may be
        called alone, and then nothing may follow it.
        """
        if not self.is_chain:
            return None
        why = refusal(tool.name, tool)
        if why is None and first is not None and refusal(first.name, first):
            why = f"{tool.name} follows {first.name}, which is not for chains: {ALONE}"
        self.refused = self.refused or why or ""
        return why

    def failed(self, place: int | None) -> None:
        """Note that a call failed."""
        if place is not None:
            self.stopped_at = place if self.stopped_at is None else min(place, self.stopped_at)


def refusal(name: str, tool: Tool | None) -> str | None:
    """Return why a tool may not be called in a chain, and what to do; None if it may."""
    if name in ROUTING:
        return f"{name} hands the task to another agent and is never part of a chain: {ALONE}"
    if name == UNKNOWN:
        return "a tool's name is computed, and a chain needs it as a literal: CALL('grep', ...)"
    if tool is None or tool.read_only or "chain" in tool.allowed_callers:
        return None  # one that is not there: its call says so
    return f"{name} changes something and is not for chains: {ALONE}"


@dataclass
class Cells:
    """Runs the cells of one environment, as they are or as chains."""

    _registry: Registry
    _config: EnvironmentConfig

    def __post_init__(self) -> None:
        self._mode = self._config.tool_chain_mode or "seq"

    async def run(
        self, box: BaseSandbox, code: str, timeout_ms: float | None, turn: int
    ) -> tuple[SandboxResult, ChainReport]:
        """Run a cell in structured mode; return how as well."""
        tree = parse(code)
        calls = () if tree is None else tuple(find_calls(tree, self._registry))
        if tree is None or not (len(calls) > 1 or any(call.repeated for call in calls)):
            return await self._run_single(box, code, calls, timeout_ms, turn)
        if why := self._refusals(calls):
            result = SandboxResult(
                kind=Outcome.REFUSED,
                error=f"{ERROR_TYPE}: nothing was run. {why}",
                error_type=ERROR_TYPE,
                exit_code=1,
                isolation=box.isolation,
            )
            tools = tuple(call.tool for call in calls)
            return result, ChainReport(mode=self._mode, tools=tools, refused=True, why=why)
        return await self._run_chain(box, code, tree, calls, timeout_ms, turn=turn)

    async def execute(
        self, box: BaseSandbox, code: str, timeout_ms: float | None, turn: int, chain: Chain | None
    ) -> SandboxResult:
        """Run a cell, with the results of its read-only calls fetched meanwhile."""
        registry, prefetcher = self._registry, None
        if self._config.parallel_tools and (chain is None or not chain.planned):
            prefetcher = start_prefetch(registry, code)
        registry.turn = TurnContext(f"turn {turn}", chain, prefetcher)
        try:
            return await box.execute(code, timeout_ms=timeout_ms)
        finally:
            registry.turn = TurnContext(f"turn {turn}")
            if prefetcher is not None:
                prefetcher.close()

    async def _run_single(
        self,
        box: BaseSandbox,
        code: str,
        calls: tuple[ToolCall, ...],
        timeout_ms: float | None,
        turn: int,
    ) -> tuple[SandboxResult, ChainReport]:
        """Run a cell in whose source there is one call at most; it is a chain if it makes more."""
        chain = Chain(chain_id=f"chain-{turn}", found=False)
        result = await self.execute(box, code, timeout_ms, turn, chain)
        if not chain.is_chain:
            return result, ChainReport(mode=self._mode, tools=tuple(call.tool for call in calls))
        self._registry.log.join_chain(f"turn {turn}", chain.chain_id)
        why = "the source does not show all of its calls" if self._mode == "dep" else ""
        return result, ChainReport(
            chain_id=chain.chain_id,
            mode=self._mode,
            fallback_to_seq=bool(why),
            why=chain.refused or why,
            tools=tuple(chain.called),
            refused=bool(chain.refused),
            stopped_at=None if result.success else chain.stopped_at,
        )

    def _refusals(self, calls: tuple[ToolCall, ...]) -> str:
        """Return the reasons why calls may not be in a chain, call by call."""
        result = {
            f"line {call.line}: {why}": None
            for call in calls
            if (why := refusal(call.tool, self._registry.get(call.tool)))
        }
        return "; ".join(result)

    async def _run_chain(
        self,
        box: BaseSandbox,
        code: str,
        tree: ast.Module,
        calls: tuple[ToolCall, ...],
        timeout_ms: float | None,
        *,
        turn: int,
    ) -> tuple[SandboxResult, ChainReport]:
        names = tuple(call.tool for call in calls)
        tools = [self._registry.get(name) for name in names]
        reads = all(tool is not None and tool.read_only for tool in tools)
        planned, why = None, ""
        if self._mode == "dep" or (reads and self._config.parallel_tools):
            planned, why = self._plan(box, code, tree)
        chain = Chain(chain_id=f"chain-{turn}", planned=() if planned is None else planned.tools)
        text = code if planned is None else planned.code
        result = await self.execute(box, text, timeout_ms, turn, chain)
        report = ChainReport(
            chain_id=chain.chain_id,
            mode=self._mode,
            mode_used="seq" if planned is None else "dep" if self._mode == "dep" else "parallel",
            fallback_to_seq=bool(why),
            why=chain.refused or why,
            tools=names,
            refused=bool(chain.refused),
            waves=() if planned is None else planned.waves,
            stopped_at=None if result.success else chain.stopped_at,
        )
        return result, report

    def _plan(self, box: BaseSandbox, code: str, tree: ast.Module) -> tuple[WavePlan | None, str]:
        if box.backend in NO_THREADS:
            return None, f"guests of the backend {box.backend} cannot start threads"
        checked = "restricted" if box.backend == "restricted" else self._config.guard
        if checked is not None and guard.check(code, checked):
            return None, "the guard refuses the cell"  # which says where, by the lines of the cell
        try:
            registry, mutations = self._registry, bool(self._config.parallel_mutations)
            return plan(tree, registry.get, registry, mutations=mutations), ""
        except AmbiguousError as exc:
            return None, str(exc)


def note_of(report: ChainReport) -> str | None:
    """Return what a model is told of a chain that stopped."""
    if report.stopped_at is None:
        return None
    name = report.tools[report.stopped_at] if report.stopped_at < len(report.tools) else "a tool"
    done = f"call {report.stopped_at + 1} of {len(report.tools)} of the chain, {name}, failed"
    return f"({done}; what comes after it did not run, unless it was in the same wave)"
