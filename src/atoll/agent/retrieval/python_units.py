"""Splits Python into functions, classes and methods, by its syntax tree."""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atoll.agent.retrieval.source import Source
    from atoll.agent.retrieval.types import Unit

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def python_units(source: Source) -> list[Unit]:
    """Return the units of a module.

    Raise ValueError, SyntaxError, RecursionError or MemoryError if it cannot be parsed.
    """
    if "\r" in source.text.replace("\r\n", ""):
        raise ValueError("a lone carriage return: its lines are not those of the syntax tree")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as invalid escape sequences
        tree = ast.parse(source.text)
    units = list(_units(source, tree.body, ""))
    return [*units, *source.rest(units, ast.get_docstring(tree) or "")]


def _units(source: Source, body: Sequence[ast.AST], owner: str) -> Iterator[Unit]:
    for node in _definitions(body):
        if isinstance(node, ast.ClassDef):
            yield _class_unit(source, node, owner)
            yield from _units(source, node.body, f"{owner}{node.name}.")
        else:
            yield _function_unit(source, node, owner)


def _definitions(body: Sequence[ast.AST]) -> Iterator[_Definition]:
    """Yield the definitions of this level, also those inside of an `if` or a `try`."""
    for node in body:
        if isinstance(node, _Definition):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _definitions(list(ast.iter_child_nodes(node)))
        elif isinstance(node, ast.ExceptHandler):
            yield from _definitions(node.body)


def _function_unit(source: Source, node: _Function, owner: str) -> Unit:
    return source.unit(
        "method" if owner else "function",
        owner + node.name,
        _lines(node),
        signature=_signature(source, node),
        doc=ast.get_docstring(node) or "",
    )


def _class_unit(source: Source, node: ast.ClassDef, owner: str) -> Unit:
    """Return a class with only the signatures of its methods: each method is its own unit."""
    parts = [source.lines(_first_line(node), _first_line(node.body[0]) - 1)]
    for child in node.body:
        if isinstance(child, _Definition):
            parts.append(f"    {_signature(source, child)}\n")
        else:
            parts.append(source.lines(_first_line(child), child.end_lineno or child.lineno))
    return source.unit(
        "class",
        owner + node.name,
        _lines(node),
        signature=_signature(source, node),
        doc=ast.get_docstring(node) or "",
        body="".join(parts),
    )


def _signature(source: Source, node: _Definition) -> str:
    """Return the source from `def` to the colon; the whole line of a one-line function."""
    last = max(node.lineno, _first_line(node.body[0]) - 1)
    lines = source.lines(node.lineno, last).splitlines()
    code = " ".join(line for line in lines if not line.lstrip().startswith("#"))
    return " ".join(code.split()).rstrip(":")


def _lines(node: _Definition) -> tuple[int, int]:
    return _first_line(node), node.end_lineno or node.lineno


def _first_line(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, _Definition) else []
    return min([node.lineno, *(one.lineno for one in decorators)])
