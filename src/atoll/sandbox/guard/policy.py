"""The guard `restrictedpython`: what RestrictedPython's own policy refuses, imports and calls.

RestrictedPython's policy leaves imports and calls to restricted built-ins. In other backends code
has Python's own built-ins, so names that lead to the system are refused here.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.extras import hint as install_hint
from atoll.sandbox.guard import profiles, visitor
from atoll.sandbox.guard.visitor import MAX_CHARACTERS, Violation, make

if TYPE_CHECKING:
    from types import ModuleType

_LINE = re.compile(r"Line (\d+|None): (.*)", re.DOTALL)
ADVICE = "write it without that, or run it in a jailed backend without a guard"


def examine(code: str) -> tuple[Violation, ...] | None:
    """Return what the policy refuses in the code; None if the code does not parse."""
    library = load()
    if len(code) > MAX_CHARACTERS:
        size = f"{len(code):,} characters, of at most {MAX_CHARACTERS:,}"
        return (make(None, "size", size),)
    try:
        compile(code, "<guard>", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    except (RecursionError, MemoryError):
        return (make(None, "nesting"),)
    try:
        result: Any = library.compile_restricted_exec(code)
    except (RecursionError, MemoryError):
        return (make(None, "nesting"),)
    refused = tuple(_violation(text) for text in result.errors)
    return refused or visitor.examine(code, profiles.POLICY)


def load() -> ModuleType:
    """Import RestrictedPython; ConfigError says what to type if it is not installed."""
    try:
        import RestrictedPython  # noqa: PLC0415 - an extra
    except ImportError:
        reason = "the guard restrictedpython needs RestrictedPython"
        raise ConfigError(f"{reason}. {install_hint('guard')}") from None
    library: ModuleType = RestrictedPython
    return library


def _violation(text: str) -> Violation:
    match = _LINE.match(text)
    line = int(match[1]) if match and match[1] != "None" else 1
    message = f"{match[2] if match else text} {ADVICE}"
    return Violation(line=line, column=0, rule="restrictedpython", message=message)


def with_printed(code: str) -> str:
    """Return code whose `printed` is what its cell has printed, as RestrictedPython has it.

    Names are replaced in place, so that lines stay the same. Code that gives `printed` a value of
    its own, or does not read it, is returned as it is.
    """
    if "printed" not in code:
        return code
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    changed = [node for node in names if node.id in _PRINTING]
    read = any(node.id == "printed" for node in changed)
    bound = any(not isinstance(node.ctx, ast.Load) for node in changed)
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    if not read or bound or arguments & _PRINTING.keys():
        return code
    lines = [line.encode() for line in code.splitlines(keepends=True)]
    for node in sorted(changed, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        line, at = lines[node.lineno - 1], node.col_offset
        if line[at : at + len(node.id)] != node.id.encode():  # inside an f-string of Python 3.11
            return code
        lines[node.lineno - 1] = line[:at] + _PRINTING[node.id] + line[at + len(node.id) :]
    return b"".join(lines).decode()


_PRINTING = {"print": b"atoll_print", "printed": b"atoll_printed()"}
