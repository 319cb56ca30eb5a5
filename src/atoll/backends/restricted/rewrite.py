"""Compiles guest code: operations that the source does not decide become checked calls.

    x._private, x.format       .get(x, "_private")
    x.name = 1                 .target(x, "name").name = 1
    import math as m           m = .load("math")
    from math import pi        pi = .take("math", "pi")

SECURITY: the functions' names begin with a dot, so guest code cannot write, bind or hide them.
The guard has checked the code on the host before it is sent here.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.backends.restricted.access import GuardError
from atoll.sandbox.guard import words
from atoll.sandbox.guard.visitor import is_dunder, plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

GET, TARGET, LOAD, TAKE = ".get", ".target", ".load", ".take"
LAST = ".last"
"""The variable for the value of a last expression; guest code cannot write this name."""
DEEP = 20_000
Node = TypeVar("Node", bound=ast.AST)


def compile_checked(code: str, name: str) -> CodeType:
    """Compile code that stores its last expression in LAST."""
    tree: Any = compile(code, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        target = ast.Name(LAST, ast.Store())
        tree.body[-1] = ast.copy_location(ast.Assign([target], last.value), last)
    try:
        with _deep():  # not for compile(), which uses the C stack
            tree = ast.fix_missing_locations(_Rewriter().visit(tree))
        return compile(tree, name, "exec", dont_inherit=True)
    except RecursionError:
        raise GuardError("the code is nested too deeply to be checked: split it") from None


@contextlib.contextmanager
def _deep() -> Iterator[None]:
    """Raise the recursion limit: a tree may be as deep as the parser allows."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(DEEP)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class _Rewriter(ast.NodeTransformer):
    def __init__(self) -> None:
        self._classes: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Track the innermost class, whose name Python mangles private names with."""
        self._classes.append(node.name)
        self.generic_visit(node)
        self._classes.pop()
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        name = plain(node.attr)
        owner = self._classes[-1].lstrip("_") if self._classes else ""
        if owner and name.startswith("__") and not is_dunder(name):
            name = f"_{owner}{name}"
        if not isinstance(node.ctx, ast.Load):
            node.value = _call(node, TARGET, node.value, ast.Constant(name))
            return node
        if name.startswith("_") or name in words.AMBIGUOUS:
            return _call(node, GET, node.value, ast.Constant(name))
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        """`import a.b` binds a, `import a.b as c` binds a.b."""
        result: list[ast.stmt] = []
        for alias in node.names:
            name = plain(alias.name)
            wanted = name if alias.asname else f"{name}:"
            target = alias.asname or name.partition(".")[0]
            result.append(_bind(node, target, _call(node, LOAD, ast.Constant(wanted))))
        return result

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | list[ast.stmt]:
        if node.module == "__future__":
            return node
        module = plain(node.module or ".")
        return [
            _bind(
                node,
                alias.asname or alias.name,
                _call(node, TAKE, ast.Constant(module), ast.Constant(plain(alias.name))),
            )
            for alias in node.names
        ]


def _bind(node: ast.stmt, name: str, value: ast.expr) -> ast.stmt:
    return _at(node, ast.Assign([_at(node, ast.Name(name, ast.Store()))], value))


def _call(node: ast.AST, function: str, *args: ast.expr) -> ast.expr:
    for arg in args:
        _at(node, arg)
    return _at(node, ast.Call(_at(node, ast.Name(function, ast.Load())), list(args), []))


def _at(node: ast.AST, made: Node) -> Node:
    """Copy the location of the replaced node, so that tracebacks show the guest's own line."""
    return made if hasattr(made, "lineno") else ast.copy_location(made, node)
