"""Runs in the guest: a cell in a code context of E2B, which is a namespace of the session.

Only the standard library, and Python 3.8.
"""

from __future__ import annotations

import ast
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run(
    main: dict[str, Any], context: str | None, code: str, env: dict[str, str], cwd: str | None
) -> Any:
    """Run code in a namespace, with variables of the environment; return the last expression."""
    space = main
    if context is not None:
        fresh = {"__name__": "__main__", "__builtins__": __builtins__}
        space = main.setdefault("_e2b_contexts", {}).setdefault(context, fresh)
    tree, last = ast.parse(code, "<cell>"), None
    end = tree.body[-1] if tree.body else None
    if isinstance(end, ast.Expr):
        last = ast.Expression(end.value)
        tree.body.pop()
    before, here = dict(os.environ), os.getcwd()
    os.environ.update(env)
    if cwd is not None:
        os.chdir(space.get("__cwd__", cwd))
    try:
        exec(compile(tree, "<cell>", "exec"), space)  # noqa: S102
        return None if last is None else eval(compile(last, "<cell>", "eval"), space)  # noqa: S307
    finally:
        for name in env:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
        if cwd is not None:
            space["__cwd__"] = os.getcwd()
            os.chdir(here)
