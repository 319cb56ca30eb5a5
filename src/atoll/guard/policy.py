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
from atoll.guard import profiles, visitor
from atoll.guard.violation import Violation
from atoll.guard.visitor import MAX_CHARACTERS, make

if TYPE_CHECKING:
    from types import ModuleType

_LINE = re.compile(r"Line (\d+|None): (.*)", re.DOTALL)
ADVICE = "write it without that, or run it in a jailed backend without a guard"


def examine(code: str) -> tuple[Violation, ...] | None:
    """Return what the policy refuses in the code; None if the code does not parse."""
    library = load()
    if len(code) > MAX_CHARACTERS:
        found = f"{len(code):,} characters, of at most {MAX_CHARACTERS:,}"
        return (make(None, "size", found),)
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
