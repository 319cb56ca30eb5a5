"""Compiles guest code: checked and rewritten by this backend, or by RestrictedPython's policy."""

from __future__ import annotations

import ast
import contextlib
import sys
import warnings
from typing import TYPE_CHECKING, Any, Protocol, cast

from atoll.backends.restricted.refusal import GuardError
from atoll.backends.restricted.rewrite import rewrite
from atoll.sandbox.guard import check, describe, policy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

LAST = ".last"
"""The variable for the value of a last expression; guest code cannot write this name."""
DEEP = 20_000


class Compiler(Protocol):
    """Turns source into a code object."""

    def __call__(self, code: str, name: str) -> CodeType:
        """Compile code that stores its last expression in LAST; GuardError if it is refused."""
        ...


def checked(code: str, name: str) -> CodeType:
    """Compile code that passed this backend's check; ambiguous cases are checked at run time."""
    tree = _parse(code, name)
    _require(code, "restricted")
    try:
        with _deep():  # not for compile(), which uses the C stack
            tree = ast.fix_missing_locations(rewrite(_keep_last(tree)))
        return compile(tree, name, "exec", dont_inherit=True)
    except RecursionError:
        raise GuardError("the code is nested too deeply to be checked: split it") from None


def by_policy(code: str, name: str) -> CodeType:
    """Compile code with RestrictedPython."""
    library: Any = policy.load()
    tree = _parse(code, name)
    _require(code, "restrictedpython")
    tree = ast.fix_missing_locations(_keep_last(tree))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result: Any = library.compile_restricted_exec(tree, name)
    if result.errors:
        raise GuardError("; ".join(result.errors))
    made: CodeType = result.code
    return made


def _parse(code: str, name: str) -> ast.Module:
    tree: Any = compile(code, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    return cast("ast.Module", tree)


def _require(code: str, guard: str) -> None:
    if found := check(code, guard):
        raise GuardError(describe(found).partition(": ")[2])


def _keep_last(tree: ast.Module) -> ast.Module:
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        target = ast.Name(LAST, ast.Store())
        tree.body[-1] = ast.copy_location(ast.Assign([target], last.value), last)
    return tree


@contextlib.contextmanager
def _deep() -> Iterator[None]:
    """Raise the recursion limit: a tree may be as deep as the parser allows."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(DEEP)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
