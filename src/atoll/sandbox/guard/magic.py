"""Lets a guard check cells with notebook magics: the Python around them, and each magic.

SECURITY: the guest runs exactly the Python that was checked here, not the cell's original text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll.guest.cells import compiling, magics
from atoll.sandbox.guard import profiles
from atoll.sandbox.guard.visitor import Violation

if TYPE_CHECKING:
    from atoll.guest.cells.magics import Command

Examine = Callable[[str], tuple[Violation, ...] | None]
"""A guard: returns violations in Python code, or None if the code does not parse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The result of a guard's check of a cell."""

    violations: tuple[Violation, ...] = ()
    code: str
    """The code to send to the guest if there are no violations."""
    parsed: bool = True
    """Whether the guard could parse the code; the guest may have another version of Python."""


def read(code: str, examine: Examine, *, only_ignored: bool) -> Reading:
    """Check a cell with a guard; `only_ignored` allows only magics that do nothing."""
    result = examine(code)
    if result is not None:
        return Reading(violations=result, code=code)
    translated = magics.translate(code)
    blanked = magics.translate(code, lambda _: "None")
    if translated is None or blanked is None or (result := examine(blanked[0])) is None:
        bare = compiling.unwrap(code)
        if bare != code:
            return read(bare, examine, only_ignored=only_ignored)
        return Reading(code=code, parsed=False)
    source, commands = translated
    for command in commands:
        result += _vet(command, examine, only_ignored=only_ignored)
    return Reading(
        violations=tuple(sorted(result, key=lambda violation: violation.line)), code=source
    )


def _vet(command: Command, examine: Examine, *, only_ignored: bool) -> tuple[Violation, ...]:
    """Return the violations of a magic: it may only run Python that the guard accepts."""
    if magics.is_ignored(command):
        return ()
    python = None if only_ignored else _python_in(command)
    if python is None:
        return (_violation(command),)
    result: tuple[Violation, ...] = ()
    for code in python:
        inside = examine(code)
        result += (_violation(command),) if inside is None else inside
    return tuple(replace(violation, line=command.line) for violation in result)


def _python_in(command: Command) -> list[str] | None:
    """Return the Python that a magic runs; None if it may run something else."""
    name, rest, body = command.name, command.rest, command.body
    if command.kind == magics.HELP:
        return [f"help({command.text})"]
    if command.kind == magics.LINE:
        if name in magics.PYTHON_LINES:
            return [magics.without_options(rest)]
        return [] if name == "pwd" else None
    if command.kind == magics.CELL and name == "timeit":
        return [magics.without_options(rest), body or ""]
    return [] if command.kind == magics.CELL and name == magics.PYTHON_CELL else None


def _violation(command: Command) -> Violation:
    message = profiles.ADVICE["magic"].format(command)
    return Violation(line=command.line, column=0, rule="magic", message=message)
