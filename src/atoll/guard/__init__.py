"""Guards: checks of code before it runs. A seat belt for honest mistakes, never counted as a wall.

    violations = check("import os", "ast")
    print(describe(violations))

Nothing of the code runs. Code that does not parse has no violations: whoever runs it gets its
SyntaxError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.guard import policy, profiles
from atoll.guard.violation import ERROR_TYPE, Violation, describe
from atoll.guard.visitor import examine

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ERROR_TYPE", "Violation", "check", "describe", "require"]

GUARDS: dict[str, Callable[[str], tuple[Violation, ...]]] = {
    "ast": lambda code: examine(code, profiles.AST),
    "restricted": lambda code: examine(code, profiles.RESTRICTED),
    "restrictedpython": policy.examine,
}


def check(code: str, guard: str = "ast") -> tuple[Violation, ...]:
    """What `guard` finds in the code, in the order of its lines."""
    if guard not in GUARDS:
        raise ConfigError(f"no guard {guard!r}: there are {', '.join(GUARDS)}")
    return GUARDS[guard](code)


def require(guard: str | None) -> None:
    """ConfigError with what to install, where a guard lacks its library."""
    if guard == "restrictedpython":
        policy.load()
