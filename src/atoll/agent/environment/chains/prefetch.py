"""parallel_tools: read-only calls whose arguments are known run side by side while a cell runs.

    cell ──▶ calls that are sure to be made, with literal arguments ──▶ threads and tasks
      │                                                                       │
      └─ runs unchanged; each call takes its result, in its place ◀───────────┘ one-turn cache

The cell decides what is called: a result that no call asks for is dropped, without a trace in the
log or the ledger. A call of a tool that changes something drops all results that are left, so a
result is never older than a change. Exceptions are raised where the call stands.
"""

from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import contextvars
import inspect
import json
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.chains import waves as chain_calls
from atoll.agent.environment.tools.registry import run
from atoll.guest.agent.chain import NamedCalls
from atoll.guest.agent.explorer import Explorer
from atoll.guest.agent.tools import make
from atoll.guest.shared import values
from atoll.sandbox.bridge import await_handler, run_handler
from atoll.sandbox.signatures import DESCRIPTION

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from atoll.agent.environment.tools.registry import Registry
    from atoll.sandbox.tools import Tool

    Arguments = tuple[tuple[Any, ...], dict[str, Any]]
    Constants = dict[str, str | int | float | bytes | None]
    """Variables of a cell whose value is known, and cannot change."""

MAX_CALLS = 32
FEWEST_CALLS = 2
"""One call alone gains nothing."""
_SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.Pass)
_HARMLESS = frozenset({"print", "len", "str", "repr", "int", "float", "list", "tuple", "dict"})
"""Calls of them do not fail on a tool's result, so that what follows is sure to be reached."""
_effects: contextvars.ContextVar[list[Callable[[], None]] | None] = contextvars.ContextVar(
    "atoll_effects", default=None
)


def note(effect: Callable[[], None]) -> None:
    """Do what a call leaves behind: now, or when guest code takes a result that was fetched."""
    waiting = _effects.get()
    if waiting is None:
        effect()
    else:
        waiting.append(effect)


class Prefetched:
    """The result of one call, perhaps still to come: for a thread, or for a coroutine."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._effects: list[Callable[[], None]] = []

    async def fetch(self, registry: Registry, tool: Tool, given: Arguments) -> None:
        """Call the tool; called in a task."""
        token = _effects.set(self._effects)
        started = time.perf_counter()
        try:
            if inspect.iscoroutinefunction(tool.function) or tool.timeout_seconds is not None:
                value = await await_handler(registry.call(tool, *given))
            else:
                context = contextvars.copy_context()
                value = await registry.threads.run(
                    lambda: context.run(run_handler, run, (tool, *given), {})
                )
        except BaseException as exc:  # noqa: BLE001 - it is raised where guest code made the call
            self.seconds = time.perf_counter() - started
            self._future.set_exception(exc)
        else:
            self.seconds = time.perf_counter() - started
            self._future.set_result(value)
        finally:
            _effects.reset(token)

    def result(self) -> Any:
        """Wait for the result in a thread; what the call leaves behind is done now."""
        try:
            return self._future.result()
        finally:
            self._settle()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        try:
            return await asyncio.wrap_future(self._future)
        finally:
            self._settle()

    def _settle(self) -> None:
        for effect in self._effects:
            effect()


def start_prefetch(registry: Registry, code: str) -> Prefetcher | None:
    """Start the read-only calls of a cell that are sure to be made; None if there are not several.

    In any doubt a call is not made.
    """
    names = [tool.name for tool in registry if tool.read_only]
    if sum(map(code.count, names)) < FEWEST_CALLS:
        return None
    calls = list(_calls_of(code, registry))
    return Prefetcher(registry, calls) if len(calls) >= FEWEST_CALLS else None


class Prefetcher:
    """The results of one turn, by tool and arguments; of equal calls, in their order."""

    def __init__(self, registry: Registry, calls: list[tuple[Tool, Arguments]]) -> None:
        self._found: defaultdict[str, deque[Prefetched]] = defaultdict(deque)
        self._tasks: list[asyncio.Task[None]] = []
        for tool, given in calls:
            fetched = Prefetched()
            self._found[_key(tool, given)].append(fetched)
            self._tasks.append(asyncio.ensure_future(fetched.fetch(registry, tool, given)))

    def take(self, tool: Tool, given: Arguments) -> Prefetched | None:
        """Return the result for a call of guest code; a call that changes something drops all."""
        if not tool.read_only:
            self._found.clear()
        if not self._found:
            return None
        waiting = self._found.get(_key(tool, given))
        return waiting.popleft() if waiting else None

    def close(self) -> None:
        """Drop what was not asked for."""
        self._found.clear()
        for task in self._tasks:
            task.cancel()


def _key(tool: Tool, given: Arguments) -> str:
    try:
        sent = [values.encode(list(given[0])), values.encode(given[1])]
        return f"{tool.name} {json.dumps(sent, sort_keys=True)}"
    except (ValueError, TypeError, RecursionError):
        return ""  # no call that is prefetched has such arguments


def _calls_of(code: str, registry: Registry) -> Iterator[tuple[Tool, Arguments]]:
    """Yield the read-only calls with known arguments before the first statement that is not one."""
    tree = chain_calls.parse(code)
    stubs, sure, count = _Stubs(registry), True, 0
    constants: Constants = {}
    for statement in tree.body if tree is not None else ():
        if not isinstance(statement, _SIMPLE):
            return
        for call in chain_calls.surely_made(statement, registry):
            tool = registry.get(call.tool)
            if tool is None or not tool.read_only:
                return
            assert isinstance(call.node, ast.Call)
            given = stubs.arguments(call.node, constants)
            may = tool.cost == "free" or (tool.cost == "network" and sure)
            if given is not None and may and tool.untrusted == "allow" and count < MAX_CALLS:
                count += 1
                yield given
        if len(list(chain_calls.find_calls(statement, registry))) > len(
            list(chain_calls.surely_made(statement, registry))
        ):
            return  # a call that may or may not be made: what follows it is not known
        sure = sure and _is_sure(statement, registry)
        _learn(statement, constants)


def _is_sure(statement: ast.stmt, registry: Registry) -> bool:
    """Return whether the statement cannot fail but for the tools that it calls."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    plain = all(
        isinstance(node.func, ast.Name) and (node.func.id in registry or node.func.id in _HARMLESS)
        for node in calls
    )
    kinds = (ast.Subscript, ast.Attribute, ast.BinOp, ast.Import, ast.ImportFrom, ast.AugAssign)
    return plain and not any(isinstance(node, kinds) for node in ast.walk(statement))


def _learn(statement: ast.stmt, constants: Constants) -> None:
    """Note a name that is given a constant; forget every other name that the statement sets."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            constants.pop(node.id, None)
        elif isinstance(node, ast.alias):
            constants.pop(node.asname or node.name.partition(".")[0], None)
            if node.name == "*":
                constants.clear()
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], _literal(statement.value, constants)
        if isinstance(target, ast.Name) and value is not _UNKNOWN and _is_constant(value):
            constants[target.id] = value


_UNKNOWN = object()


def _is_constant(value: Any) -> bool:
    """Return whether nothing can change the value between two statements."""
    return value is None or isinstance(value, str | int | float | bytes)


def _literal(node: ast.AST, constants: Constants) -> Any:
    """Return the value of a literal, or of a name that has one; _UNKNOWN for anything else."""
    if isinstance(node, ast.Name):
        return constants.get(node.id, _UNKNOWN)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _UNKNOWN


class _StubError(BaseException):
    """A stub was called: what it would send to the host."""

    def __init__(self, name: str, given: Arguments) -> None:
        super().__init__(name)
        self.name, self.given = name, given


class _Stubs:
    """The guest's own functions, on the host, to see what a call would send."""

    def __init__(self, registry: Registry) -> None:
        def sent(name: str, /, *args: Any, **kwargs: Any) -> Any:
            raise _StubError(name, (args, kwargs))

        self._registry = registry
        described = (getattr(tool, DESCRIPTION) for tool in registry)
        functions: dict[str, Callable[..., Any]] = dict(
            make(description, sent) for description in described
        )
        explorer = Explorer(sent, {}, dict, own_files=True)
        functions.update((name, getattr(explorer, name)) for name in explorer.NAMES)
        named = NamedCalls(sent, dict(functions))
        functions.update((name, getattr(named, name)) for name in named.NAMES)
        self._functions = {**functions, "call_host": sent}

    def arguments(self, node: ast.Call, constants: Constants) -> tuple[Tool, Arguments] | None:
        """Return the tool and what it is sent; None if that is not known before the cell runs."""
        args = [_literal(argument, constants) for argument in node.args]
        named = {keyword.arg or "": _literal(keyword.value, constants) for keyword in node.keywords}
        if "" in named or any(argument is _UNKNOWN for argument in (*args, *named.values())):
            return None
        assert isinstance(node.func, ast.Name)
        try:
            self._functions[node.func.id](*args, **named)
        except _StubError as exc:
            tool = self._registry.get(exc.name)
            return None if tool is None or not tool.read_only else (tool, exc.given)
        except Exception:  # noqa: BLE001 - the guest will say what is wrong with the call
            return None
        return None
