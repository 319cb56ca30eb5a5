"""Finds the calls of tools in a cell by its syntax tree, and which of them are sure to be made."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

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
MOST_CODE = 100_000
"""Characters of code that is looked through before it runs; longer code runs as it is."""
_REPEATS = (
    ast.For, ast.AsyncFor, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip


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
    if len(code) > MOST_CODE:
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


def find(tree: ast.AST, tools: Container[str], *, repeated: bool = False) -> Iterator[ToolCall]:
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
        yield from find(child, tools, repeated=inside)


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
