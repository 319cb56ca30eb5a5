"""Encodes variables for a guest, validates the guest's answers, and words the errors.

SECURITY: a listing is the guest's word. Every field is checked and cut before a caller sees it.
"""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError, VariableError
from atoll.guest.core.variables import MAX_SHAPE, MAX_TEXT, MAX_VARIABLES
from atoll.guest.shared import values
from atoll.guest.shared.arrays import LibraryMissingError
from atoll.types import Variable, Variables

if TYPE_CHECKING:
    from collections.abc import Mapping

LISTING_TIMEOUT_MS = 10_000
"""Time for a question that needs no work of the guest's."""
MAX_NAME = 1_000
MAX_NUMBER = 1 << 62
SHAPE_ERRORS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
READ_ADVICE = (
    "Read a part of it, convert it in the sandbox to plain data (numbers, text, lists, dicts, "
    "arrays, data frames), or write it to a file there and fetch that by files.download()"
)
SET_ADVICE = (
    "Pass plain data (numbers, text, lists, dicts, dates, arrays, data frames), or put a file "
    "there by files.upload() and load it in the sandbox"
)


LARGE_ITEMS, LARGE_BYTES = 10_000, 1 << 20


def check_name(name: object) -> str:
    """Return the name of a variable; ConfigError if it is not a Python name."""
    if not isinstance(name, str):
        raise ConfigError(f"a variable's name must be a str, not {type(name).__name__}")
    if len(name) > MAX_NAME:
        raise ConfigError(f"a variable's name must have at most {MAX_NAME:,} characters")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r:.100} is not the name of a variable: use a Python name, and execute() "
            "for anything else"
        )
    return str(name)


def check_new_name(name: object) -> str:
    """Return the name of a variable to set; ConfigError if guest code could not have set it."""
    name = check_name(name)
    if name.startswith("__"):
        raise ConfigError(f"the name {name!r} is Python's own: use one without leading underscores")
    return name


def encode(name: str, value: Any) -> Any:
    """Return `value` as the guest is sent it; VariableError if it cannot be sent."""
    try:
        return values.encode(value, strict=True, typed=True)
    except (ValueError, RecursionError) as exc:
        raise cannot_set(name, str(exc)) from None


def is_found(name: str, answer: Mapping[str, Any]) -> bool:
    """Return whether the guest has the variable; VariableError if it does not say."""
    result = answer.get("found")
    if type(result) is not bool:
        raise VariableError(name, "the guest's answer does not say whether there is one")
    return result


def decode(name: str, answer: Mapping[str, Any]) -> Any:
    """Return the value that a guest sent; VariableError if it is not one."""
    try:
        return values.decode(answer["value"])
    except LibraryMissingError as exc:
        raise VariableError(name, str(exc)) from None
    except SHAPE_ERRORS as exc:
        raise VariableError(name, f"the guest sent no value: {str(exc)[:200]}") from None


def is_large(answer: Mapping[str, Any]) -> bool:
    """Return whether to decode the value of an answer takes long."""
    return values.is_larger(answer.get("value"), LARGE_ITEMS, LARGE_BYTES)


def cannot_read(name: str, reason: str) -> VariableError:
    """Return the error for a value that the guest cannot send."""
    return VariableError(name, f"{reason[:1000]}. {READ_ADVICE}")


def cannot_set(name: str, reason: str) -> VariableError:
    """Return the error for a value that the guest cannot be sent."""
    return VariableError(name, f"{reason[:1000]}. {SET_ADVICE}", "set")


def read_listing(answer: Mapping[str, Any]) -> Variables:
    """Return the listing that a guest sent, checked; VariableError if it has another shape."""
    try:
        rows = answer["variables"][:MAX_VARIABLES]
        result = [_variable(*row) for row in rows]
    except SHAPE_ERRORS as exc:
        raise VariableError("*", f"the guest sent no listing: {str(exc)[:200]}") from None
    return Variables(result, truncated=answer.get("truncated") is True)


def _variable(name: Any, type_name: Any, size: Any, shape: Any) -> Variable:
    if not isinstance(name, str) or not isinstance(type_name, str):
        raise TypeError("a name and a type are texts")
    return Variable(
        name=name[:MAX_TEXT],
        type=type_name[:MAX_TEXT],
        size=None if size is None else _number(size),
        shape=None if shape is None else tuple(_number(length) for length in shape[:MAX_SHAPE]),
    )


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MAX_NUMBER:
        raise ValueError("a size is a number from 0 on")
    return value
