"""Dependency waves: which calls of a cell do not need each other's results.

They follow from the names that statements define and use:

    a = grep("x")        wave 1        atoll_wave(0, grep)("x")    start both
    b = grep("y")        wave 1        atoll_wave(1, grep)("y")
    c = llm_call(a)      wave 2        a = atoll_wave(0)           take the results, in order
                                       b = atoll_wave(1)
                                       atoll_wave(2, llm_call)(a) ...

Only calls that are statements of their own are moved, among statements that can be read without
doubt; everything else keeps its place, or the cell is run as it is.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.guest.agent.chain import WAVE

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from atoll.sandbox.tools import Tool


BY_NAME = ("tool_call", "TOOL", "CALL", "call_host")
"""Guest functions that call the tool whose name is their first argument."""
ALIASES = {
    "batch_llm_query": "llm_query",
    "batch_rlm_query": "rlm_query",
    "FINAL_VAR": "FINAL",
    "SUBMIT": "FINAL",
}
"""Guest functions that are another tool on the host."""
ROUTING = ("delegate", "escalate")
"""Tools that hand the task to another agent: never in a chain, also if there is no such tool."""
UNKNOWN = "?"
"""Stands for a tool whose name is computed."""
MAX_CODE = 100_000
"""Characters of code that is looked through before it runs; longer code runs as it is."""
_REPEATS = (
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call in the source; one in a loop, a function or a comprehension may be made often."""

    tool: str
    line: int
    node: ast.expr
    """The call; or the name of a routing primitive, which code may call by another name."""
    repeated: bool = False


def parse(code: str) -> ast.Module | None:
    """Return the tree of a cell; None if it is too long, or is not Python that a host can read."""
    if len(code) > MAX_CODE:
        return None
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return None


def tool_of(node: ast.Call, tools: Container[str]) -> str | None:
    """Return the tool that a call is of, UNKNOWN if its name is computed; None for other calls."""
    if not isinstance(node.func, ast.Name):
        return None
    name = node.func.id
    if name in BY_NAME:
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            return ALIASES.get(first.value, first.value)
        return UNKNOWN
    name = ALIASES.get(name, name)
    return name if name in tools or name in ROUTING else None


def find_calls(
    tree: ast.AST, tools: Container[str], *, repeated: bool = False
) -> Iterator[ToolCall]:
    """Yield the calls of tools in a tree, in the order of the source.

    A routing primitive that is used in any other way counts as a call of it.
    """
    children: Iterable[ast.AST] = ast.iter_child_nodes(tree)
    if isinstance(tree, ast.Call) and (name := tool_of(tree, tools)) is not None:
        yield ToolCall(name, tree.lineno, tree, repeated)
        children = (*tree.args, *tree.keywords)
    elif isinstance(tree, ast.Name) and tree.id in ROUTING and isinstance(tree.ctx, ast.Load):
        yield ToolCall(tree.id, tree.lineno, tree, repeated)
    inside = repeated or isinstance(tree, _REPEATS)
    for child in children:
        yield from find_calls(child, tools, repeated=inside)


def surely_made(node: ast.AST, tools: Container[str]) -> Iterator[ToolCall]:
    """Yield the calls of tools in an expression that are made whenever it is evaluated.

    Arguments come before the call that they are for. What `and`, `or`, `if` and comparisons may
    skip is left out, as are lambdas and comprehensions.
    """
    match node:
        case ast.Lambda() | ast.GeneratorExp() | ast.ListComp() | ast.SetComp() | ast.DictComp():
            return
        case ast.BoolOp():
            parts: list[ast.AST] = [node.values[0]]
        case ast.IfExp():
            parts = [node.test]
        case ast.Compare():
            parts = [node.left, node.comparators[0]]
        case _:
            parts = list(ast.iter_child_nodes(node))
    for part in parts:
        yield from surely_made(part, tools)
    if isinstance(node, ast.Call) and (name := tool_of(node, tools)) is not None:
        yield ToolCall(name, node.lineno, node)


SAFE_MUTATIONS = ("run_shell", "file_write_safe", "log_append", "benchmark_run")
"""Tools that change something and may still share a wave, if the caller allows it."""
_WRITES = {"file_write_safe": "path", "log_append": "log"}
_PURE = frozenset(
    """
    abs bool bytes dict divmod enumerate float frozenset int len list max min range repr
    reversed round set sorted str sum tuple zip
""".split()
)
"""Built-in functions that may be called in an argument: they change nothing."""


class AmbiguousError(Exception):
    """The order of a cell's calls cannot be read off its source; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WavePlan:
    """The cell with its calls in waves, and which calls, by their numbers, are in each."""

    code: str
    waves: tuple[tuple[int, ...], ...]
    tools: tuple[str, ...]
    """The tool of each call, by its number."""


@dataclass(slots=True, kw_only=True)
class _Step:
    """A statement of the cell: the call of a tool, or a computation."""

    statement: ast.stmt
    uses: set[str]
    defines: set[str]
    call: ast.Call | None = None
    tool: Tool | None = None
    number: int = -1
    level: int = 0
    target: Any = field(default=None)
    """What a call writes, for those of SAFE_MUTATIONS that say it; a command is what it runs."""


def plan(
    tree: ast.Module, find_tool: Callable[[str], Tool | None], names: Any, *, mutations: bool
) -> WavePlan:
    """Return the waves of a cell; AmbiguousError if there is any doubt."""
    _check_names(tree, names)
    lines: list[str] = []
    waves: list[tuple[int, ...]] = []
    tools: list[str] = []
    for segment in _segments(tree, find_tool, names, tools):
        if isinstance(segment, ast.stmt):
            lines.append(ast.unparse(segment))
            continue
        _set_levels(segment, mutations=mutations)
        is_last = segment[-1].statement is tree.body[-1]
        lines += _emit(segment, waves, is_last=is_last)
    return WavePlan(code="\n".join(lines), waves=tuple(waves), tools=tuple(tools))


def _check_names(tree: ast.Module, names: Any) -> None:
    """Raise AmbiguousError if a tool's name is anything but called."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    known = {*BY_NAME, *ALIASES, *ROUTING, WAVE}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and (node.id in names or node.id in known):
            if not isinstance(node.ctx, ast.Load):
                raise AmbiguousError(f"line {node.lineno}: the name {node.id} is given a new value")
            if id(node) not in called:
                raise AmbiguousError(f"line {node.lineno}: {node.id} is used without being called")
        name = getattr(node, "name", None) or getattr(node, "arg", None)
        if isinstance(name, str) and name in names and not isinstance(node, ast.keyword):
            raise AmbiguousError(f"line {getattr(node, 'lineno', 1)}: the name {name} is redefined")


def _segments(
    tree: ast.Module, find_tool: Callable[[str], Tool | None], names: Any, tools: list[str]
) -> Iterator[list[_Step] | ast.stmt]:
    """Yield runs of steps whose order may change, and between them statements that stay."""
    steps: list[_Step] = []
    for statement in tree.body:
        step = _step(statement, find_tool, names)
        if step is not None and step.call is not None:
            assert step.tool is not None
            step.number = len(tools)
            tools.append(step.tool.name)
        if step is not None and not _is_impure(step):
            steps.append(step)
            continue
        if steps:
            yield steps
            steps = []
        yield statement if step is None else [step]
    if steps:
        yield steps


def _is_impure(step: _Step) -> bool:
    """Return whether the arguments call functions of the guest's: then the call stays in place."""
    return step.call is not None and not all(map(_is_pure, _arguments(step.call)))


def _step(statement: ast.stmt, find_tool: Callable[[str], Tool | None], names: Any) -> _Step | None:
    """Return what a statement is; None for one that stays in place."""
    calls = list(find_calls(statement, names))
    value, target = getattr(statement, "value", None), _target(statement)
    if not calls:
        pure = isinstance(statement, ast.Assign) and target is not None and _is_pure(value)
        if not pure or target is None:
            return None
        return _Step(statement=statement, uses=_loads(value), defines={target})
    first = calls[0]
    if value is not first.node or (target is None and not isinstance(statement, ast.Expr)):
        raise AmbiguousError(
            f"line {first.line}: {first.tool} is called inside a larger statement; write "
            f"`name = {first.tool}(...)` on a line of its own"
        )
    if len(calls) > 1:
        raise AmbiguousError(f"line {first.line}: {calls[1].tool} is called in an argument")
    tool = find_tool(first.tool)
    if tool is None:
        raise AmbiguousError(f"line {first.line}: the name of the tool is computed or not known")
    assert isinstance(first.node, ast.Call)
    uses = set().union(*map(_loads, _arguments(first.node)))
    return _Step(
        statement=statement,
        uses=uses,
        defines=set() if target is None else {target},
        call=first.node,
        tool=tool,
        target=_written(first.node, tool),
    )


def _target(statement: ast.stmt) -> str | None:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if len(targets) == 1 and isinstance(targets[0], ast.Name):
        return targets[0].id
    return None


def _arguments(call: ast.Call) -> list[ast.AST]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _loads(node: ast.AST | None) -> set[str]:
    if node is None:
        return set()
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


def _is_pure(node: ast.AST | None) -> bool:
    """Return whether an expression only computes: no call but of _PURE, nothing that is bound."""
    doubtful = (
        ast.Await,
        ast.Yield,
        ast.YieldFrom,
        ast.NamedExpr,
        ast.Lambda,
        ast.Attribute,
        ast.ListComp,
        ast.SetComp,
        ast.DictComp,
        ast.GeneratorExp,
    )
    for child in ast.walk(node) if node is not None else ():
        if isinstance(child, doubtful):
            return False
        if isinstance(child, ast.Call) and not (
            isinstance(child.func, ast.Name) and child.func.id in _PURE
        ):
            return False
    return True


def _written(call: ast.Call, tool: Tool) -> Any:
    """Return the literal that says what a call writes, or runs; None if it is not a literal."""
    given = call.args[1:] if getattr(call.func, "id", "") in BY_NAME else call.args
    wanted = _WRITES.get(tool.name, "command")
    named = [keyword.value for keyword in call.keywords if keyword.arg == wanted]
    at = 1 if tool.name == "log_append" else 0
    node = named[0] if named else given[at] if len(given) > at else None
    if tool.name == "log_append" and node is None:
        return "log"
    return node.value if isinstance(node, ast.Constant) else None


def _set_levels(steps: list[_Step], *, mutations: bool) -> None:
    """Give each step its wave: after all that it needs, and never before what it could disturb."""
    for number, step in enumerate(steps):
        step.level = 1 if step.call is not None else 0
        for earlier in steps[:number]:
            step.level = max(step.level, _least_level(earlier, step, mutations=mutations))


def _least_level(earlier: _Step, step: _Step, *, mutations: bool) -> int:
    """Return the first wave in which `step` may be, as far as one earlier step is concerned."""
    needs = bool(earlier.defines & step.uses)
    disturbs = bool(step.defines & (earlier.uses | earlier.defines))
    if earlier.call is None:
        return earlier.level + (step.call is not None) if needs or disturbs else 0
    if step.call is None:
        return earlier.level if needs or disturbs else 0
    if needs or _in_order(earlier, step, mutations=mutations):
        return earlier.level + 1
    return earlier.level if disturbs else 0


def _in_order(step: _Step, other: _Step, *, mutations: bool) -> bool:
    """Return whether two calls must be made one after the other although neither needs a result."""
    assert step.tool is not None
    assert other.tool is not None
    if step.tool.read_only and other.tool.read_only:
        return False
    safe = step.tool.name in SAFE_MUTATIONS and other.tool.name in SAFE_MUTATIONS
    return not (mutations and safe) or _may_meet(step, other)


def _may_meet(first: _Step, other: _Step) -> bool:
    """Return whether two calls of SAFE_MUTATIONS may write, or read, the same file."""
    files = [step for step in (first, other) if step.tool is not None and step.tool.name in _WRITES]
    if not files:
        return False  # two commands: the caller has said that they may run side by side
    if not isinstance(first.target, str) or not isinstance(other.target, str):
        return True
    if len(files) == 2:
        return first.tool is other.tool and first.target == other.target
    written = files[0].target.rpartition("/")[2]
    return written in (other.target if files[0] is first else first.target)


def _emit(steps: list[_Step], waves: list[tuple[int, ...]], *, is_last: bool) -> Iterator[str]:
    """Yield the statements of a segment: of each wave the starts, then what takes the results."""
    last = steps[-1] if is_last and isinstance(steps[-1].statement, ast.Expr) else None
    for level in range(max(step.level for step in steps) + 1):
        here = [step for step in steps if step.level == level]
        started = [step for step in here if step.call is not None]
        if started:
            waves.append(tuple(step.number for step in started))
        for step in started:
            yield ast.unparse(_start(step))
        for step in (step for step in here if step is not last):
            yield ast.unparse(step.statement if step.call is None else _take(step))
    if last is not None:  # its value is the cell's
        yield ast.unparse(_take(last))


def _start(step: _Step) -> ast.AST:
    assert step.call is not None
    starter = ast.Call(ast.Name(WAVE), [ast.Constant(step.number), step.call.func], [])
    return ast.Expr(ast.Call(starter, step.call.args, step.call.keywords))


def _take(step: _Step) -> ast.AST:
    taken = ast.Call(ast.Name(WAVE), [ast.Constant(step.number)], [])
    name = next(iter(step.defines), None)
    if name is None:
        return ast.Expr(taken)
    return ast.Assign([ast.Name(name, ast.Store())], taken, lineno=1)
