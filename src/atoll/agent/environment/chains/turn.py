"""Structured mode: the calls of a cell are found first, checked as a chain, and run in waves.

    code ──▶ calls, by AST ──▶ gate: may they be in one turn? ──▶ seq · parallel · dep ──▶ sandbox
                                    └─ no: refused, with what to do; nothing has run

One call alone is no chain. The gate is asked once more by every call that is made, from the second
one of a turn on, since code can hide a call from a reader: by another name, by `exec`, in a loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.chains import calls as chain_calls
from atoll.agent.environment.chains import waves as chain_waves
from atoll.agent.environment.chains.prefetch import Prefetcher
from atoll.concurrency import forks
from atoll.sandbox import guard
from atoll.types import Outcome, SandboxResult

if TYPE_CHECKING:
    import ast

    from atoll.agent.environment.chains.calls import ToolCall
    from atoll.agent.environment.tools.registry import Registry
    from atoll.sandbox.base import BaseSandbox
    from atoll.sandbox.tools import Tool

MODES = ("seq", "dep")
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

    def to_dict(self) -> dict[str, Any]:
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

    def place_of(self, one: Tool, claimed: Any) -> int:
        """Return the number of a call: what the guest says, if the plan has such a call there."""
        with self._lock:
            self.called.append(one.name)
            places = [at for at, name in enumerate(self.planned) if name == one.name]
            if type(claimed) is int and claimed in places:
                self._open.discard(claimed)
                return claimed
            found = next((at for at in places if at in self._open), None)
            if found is not None:
                self._open.discard(found)
                return found
            self._count += 1
            return len(self.planned) + self._count - 1

    def refusal(self, one: Tool, first: Tool | None) -> str | None:
        """Return why a tool may not be called now; None if it may.

        `first` is the tool that was called first in this turn: one that is not for chains may be
        called alone, and then nothing may follow it.
        """
        if not self.is_chain:
            return None
        why = refusal(one.name, one)
        if why is None and first is not None and refusal(first.name, first):
            why = f"{one.name} follows {first.name}, which is not for chains: {ALONE}"
        self.refused = self.refused or why or ""
        return why

    def failed(self, place: int | None) -> None:
        """Note that a call failed."""
        if place is not None:
            self.stopped_at = place if self.stopped_at is None else min(place, self.stopped_at)


def refusal(name: str, one: Tool | None) -> str | None:
    """Return why a tool may not be called in a chain, and what to do; None if it may."""
    if name in chain_calls.ROUTING:
        return f"{name} hands the task to another agent and is never part of a chain: {ALONE}"
    if name == chain_calls.UNKNOWN:
        return "a tool's name is computed, and a chain needs it as a literal: CALL('grep', ...)"
    if one is None or one.read_only or "chain" in one.allowed_callers:
        return None  # one that is not there: its call says so
    return f"{name} changes something and is not for chains: {ALONE}"


class Cells:
    """Runs the cells of one environment, as they are or as chains."""

    def __init__(
        self, registry: Registry, *, parallel: bool, mode: str, mutations: bool, guard: str | None
    ) -> None:
        """`guard` is the name of the guard that cells pass, if they do."""
        self._registry, self._parallel = registry, parallel
        self._mode, self._mutations, self._guard = mode, mutations, guard

    async def run(
        self, box: BaseSandbox, code: str, timeout_ms: float | None, *, structured: bool
    ) -> tuple[SandboxResult, ChainReport | None]:
        """Run a cell; in structured mode, return how as well."""
        if not structured:
            return await self._execute(box, code, timeout_ms, None), None
        tree = chain_calls.parse(code)
        calls = () if tree is None else tuple(chain_calls.find(tree, self._registry))
        if tree is None or not _is_chain(calls):
            return await self._run_single(box, code, calls, timeout_ms)
        if why := self._refusals(calls):
            report = ChainReport(
                mode=self._mode, tools=tuple(one.tool for one in calls), refused=True, why=why
            )
            return _refused(box, why), report
        return await self._run_chain(box, code, tree, calls, timeout_ms)

    async def _run_single(
        self, box: BaseSandbox, code: str, calls: tuple[ToolCall, ...], timeout_ms: float | None
    ) -> tuple[SandboxResult, ChainReport]:
        """Run a cell in whose source there is one call at most; it is a chain if it makes more."""
        log = self._registry.log
        chain = Chain(chain_id=_chain_id(log.parent), found=False)
        result = await self._execute(box, code, timeout_ms, chain)
        if not chain.is_chain:
            return result, ChainReport(mode=self._mode, tools=tuple(one.tool for one in calls))
        log.join_chain(log.parent, chain.chain_id)
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
        """Return what is wrong with a chain, call by call."""
        found = {
            f"line {one.line}: {why}": None
            for one in calls
            if (why := refusal(one.tool, self._registry.get(one.tool)))
        }
        return "; ".join(found)

    async def _run_chain(
        self,
        box: BaseSandbox,
        code: str,
        tree: ast.Module,
        calls: tuple[ToolCall, ...],
        timeout_ms: float | None,
    ) -> tuple[SandboxResult, ChainReport]:
        tools = tuple(one.tool for one in calls)
        found = [self._registry.get(one) for one in tools]
        reads = all(one is not None and one.read_only for one in found)
        planned, why = None, ""
        if self._mode == "dep" or (reads and self._parallel):
            planned, why = self._plan(box, code, tree)
        chain = Chain(
            chain_id=_chain_id(self._registry.log.parent),
            planned=() if planned is None else planned.tools,
        )
        text = code if planned is None else planned.code
        result = await self._execute(box, text, timeout_ms, chain)
        report = ChainReport(
            chain_id=chain.chain_id,
            mode=self._mode,
            mode_used="seq" if planned is None else "dep" if self._mode == "dep" else "parallel",
            fallback_to_seq=bool(why),
            why=chain.refused or why,
            tools=tools,
            refused=bool(chain.refused),
            waves=() if planned is None else planned.waves,
            stopped_at=None if result.success else chain.stopped_at,
        )
        return result, report

    def _plan(
        self, box: BaseSandbox, code: str, tree: ast.Module
    ) -> tuple[chain_waves.WavePlan | None, str]:
        if box.backend in NO_THREADS:
            return None, f"guests of the backend {box.backend} cannot start threads"
        checked = "restricted" if box.backend == "restricted" else self._guard
        if checked is not None and guard.check(code, checked):
            return None, "the guard refuses the cell"  # which says where, by the lines of the cell
        try:
            registry = self._registry
            return chain_waves.plan(tree, registry.get, registry, mutations=self._mutations), ""
        except chain_waves.AmbiguousError as exc:
            return None, str(exc)

    async def _execute(
        self, box: BaseSandbox, code: str, timeout_ms: float | None, chain: Chain | None
    ) -> SandboxResult:
        """Run a cell, with the results of its read-only calls fetched meanwhile."""
        registry = self._registry
        prefetcher = Prefetcher(registry)
        started = self._parallel and (chain is None or not chain.planned) and prefetcher.start(code)
        registry.chain, registry.prefetcher = chain, prefetcher if started else None
        try:
            return await box.execute(code, timeout_ms=timeout_ms)
        finally:
            registry.chain, registry.prefetcher = None, None
            prefetcher.close()


def _is_chain(calls: tuple[ToolCall, ...]) -> bool:
    return len(calls) > 1 or any(one.repeated for one in calls)


def _chain_id(turn: str) -> str:
    return turn.replace("turn ", "chain-")


def _refused(box: BaseSandbox, why: str) -> SandboxResult:
    return SandboxResult(
        kind=Outcome.REFUSED,
        error=f"{ERROR_TYPE}: nothing was run. {why}",
        error_type=ERROR_TYPE,
        exit_code=1,
        isolation=box.isolation,
    )


def note_of(report: ChainReport | None) -> str | None:
    """Return what a model is told of a chain that stopped."""
    if report is None or report.stopped_at is None:
        return None
    name = report.tools[report.stopped_at] if report.stopped_at < len(report.tools) else "a tool"
    done = f"call {report.stopped_at + 1} of {len(report.tools)} of the chain, {name}, failed"
    return f"({done}; what comes after it did not run, unless it was in the same wave)"
