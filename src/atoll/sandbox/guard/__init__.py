"""Guards: checks of code before it runs. A seat belt for honest mistakes, never counted as a wall.

    violations = check("import os", "ast")
    print(describe(violations))

Nothing of the code runs. Code that does not parse has no violations: running it is a SyntaxError.
"""

from __future__ import annotations

import dataclasses
import platform
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.sandbox.guard import magic, policy, profiles, visitor
from atoll.sandbox.guard.magic import Reading
from atoll.sandbox.guard.visitor import ERROR_TYPE, Violation, describe, examine, make

if TYPE_CHECKING:
    from atoll.sandbox.guard.magic import Examine

__all__ = ["ERROR_TYPE", "Reading", "Violation", "check", "describe", "read", "require", "unread"]

GUARDS: dict[str, Examine] = {
    "ast": lambda code: examine(code, profiles.AST),
    "restricted": lambda code: examine(code, profiles.RESTRICTED),
    "restrictedpython": policy.examine,
}


def check(code: str, guard: str = "ast") -> tuple[Violation, ...]:
    """Return the violations that `guard` finds in the code, in the order of lines."""
    return read(code, guard).violations


def read(code: str, guard: str) -> Reading:
    """Return the violations in a cell, and the code to send to the guest if there are none."""
    if guard not in GUARDS:
        raise ConfigError(f"no guard {guard!r}: there are {', '.join(GUARDS)}")
    if reordered := visitor.bidirectional(code):
        return Reading(violations=reordered, code=code)
    result = magic.read(code, GUARDS[guard], only_ignored=guard == "restricted")
    if guard != "restrictedpython" or result.violations:
        return result
    return dataclasses.replace(result, code=policy.with_printed(result.code))


def unread() -> Violation:
    """Return the violation of code that the guest can run and the guard cannot parse."""
    return make(None, "unread", platform.python_version())


def require(guard: str | None) -> None:
    """Raise ConfigError, which says what to install, if a guard's library is missing."""
    if guard == "restrictedpython":
        policy.load()
