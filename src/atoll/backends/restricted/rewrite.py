"""Rewrites guest code so that operations that the source does not decide are checked at run time.

    x._private, x.format       .get(x, "_private")
    x.name = 1                 .target(x, "name").name = 1
    import math as m           m = .load("math")
    from math import pi        pi = .take("math", "pi")

SECURITY: the functions' names begin with a dot, so guest code cannot write, bind or hide them.
"""

from __future__ import annotations

import ast
from typing import TypeVar, cast

from atoll.sandbox.guard import words
from atoll.sandbox.guard.visitor import is_dunder, plain

GET, TARGET, LOAD, TAKE = ".get", ".target", ".load", ".take"
Node = TypeVar("Node", bound=ast.AST)


def rewrite(tree: ast.Module) -> ast.Module:
    """Return the tree, changed in place."""
    return cast("ast.Module", _Rewriter().visit(tree))


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
        name = self._mangled(plain(node.attr))
        if not isinstance(node.ctx, ast.Load):
            node.value = _call(node, TARGET, node.value, ast.Constant(name))
            return node
        if name.startswith("_") or name in words.AMBIGUOUS:
            return _call(node, GET, node.value, ast.Constant(name))
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        return [self._bind(node, *_whole_module(alias)) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | list[ast.stmt]:
        if node.module == "__future__":
            return node
        return [
            self._bind(
                node,
                alias.asname or alias.name,
                (TAKE, ast.Constant(plain(node.module or ".")), ast.Constant(plain(alias.name))),
            )
            for alias in node.names
        ]

    def _bind(self, node: ast.stmt, name: str, call: tuple[str, *tuple[ast.expr, ...]]) -> ast.stmt:
        target = _at(node, ast.Name(name, ast.Store()))
        return _at(node, ast.Assign([target], _call(node, *call)))

    def _mangled(self, name: str) -> str:
        private = name.startswith("__") and not is_dunder(name)
        owner = self._classes[-1].lstrip("_") if self._classes else ""
        return f"_{owner}{name}" if private and owner else name


def _whole_module(alias: ast.alias) -> tuple[str, tuple[str, ast.expr]]:
    """Return what an import binds: `import a.b` binds a; `import a.b as c` binds a.b."""
    name = plain(alias.name)
    if alias.asname is None:
        return name.partition(".")[0], (LOAD, ast.Constant(f"{name}:"))
    return alias.asname, (LOAD, ast.Constant(name))


def _call(node: ast.AST, function: str, *args: ast.expr) -> ast.expr:
    for one in args:
        _at(node, one)
    return _at(node, ast.Call(_at(node, ast.Name(function, ast.Load())), list(args), []))


def _at(node: ast.AST, made: Node) -> Node:
    """Copy the location of the replaced node, so that tracebacks show the guest's own line."""
    return made if hasattr(made, "lineno") else ast.copy_location(made, node)
