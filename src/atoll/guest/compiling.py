"""Compiles cells that are not plain Python: with `await` outside functions, or with magics."""

from __future__ import annotations

import _ast

from . import magics

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

    Compiled = tuple[types.CodeType, "types.CodeType | None"]


def compile_cell(code: str, name: str) -> Compiled:
    """Compile a cell that has failed as plain Python; SyntaxError if it is not a cell either."""
    try:
        return split(code, name, _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        translated = magics.translate(code)
        if translated is None:
            raise
    for command in translated[1]:
        if command.kind == magics.LINE and command.name == "time":
            split("\n" * (command.line - 1) + command.rest, name)
    return split(translated[0], name, _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def split(code: str, name: str, flags: int = 0) -> Compiled:
    """Compile all statements, and a last expression apart from them, as its value is shown."""
    tree: Any = compile(code, name, "exec", _ast.PyCF_ONLY_AST | flags, dont_inherit=True)
    last = None
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = _ast.Expression(tree.body.pop().value)
    body = compile(tree, name, "exec", flags, dont_inherit=True)
    return body, None if last is None else compile(last, name, "eval", flags, dont_inherit=True)
