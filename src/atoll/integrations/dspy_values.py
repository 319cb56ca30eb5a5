"""Converts values between DSPy and a sandbox: variables, results of tools, values of cells."""

from __future__ import annotations

import json
import keyword
from typing import TYPE_CHECKING, Any

from atoll.errors import VariableError
from atoll.guest.shared.values import TOO_LARGE, Opaque
from atoll.integrations.common import as_json, missing

try:
    from dspy.primitives.code_interpreter import CodeInterpreterError
    from dspy.primitives.python_interpreter import _dump_pydantic, _make_jsonable
    from pydantic import BaseModel
    from pydantic_core import PydanticSerializationError, to_jsonable_python
except ImportError as exc:
    raise ImportError(missing("dspy", "dspy")) from exc

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from atoll.sandbox.blocking import SyncSandbox
    from atoll.types import SandboxResult

FINAL, SUBMIT, KEPT = "_AtollFinal", "_atoll_submit", "_atoll_kept"
RESERVED = ("SUBMIT", FINAL, SUBMIT, KEPT)
"""Names in the guest that a caller may not use for variables."""


def checked_name(name: str) -> str:
    """Return the name of a variable; CodeInterpreterError if it is not a valid one."""
    if not name.isidentifier() or keyword.iskeyword(name) or name in RESERVED:
        raise CodeInterpreterError(f"Invalid variable name: '{name}'")
    return name


def plain(name: str, value: Any) -> Any:
    """Return a variable as JSON data; CodeInterpreterError names one that cannot be sent."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, BaseModel):
        return plain(name, _dump_pydantic(value))
    if isinstance(value, dict):
        return {key: plain(name, one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = [plain(name, one) for one in value]
        return _sorted(items) if isinstance(value, set | frozenset) else items
    try:
        return plain(name, to_jsonable_python(value))
    except PydanticSerializationError:
        kind = type(value).__name__
        raise CodeInterpreterError(f"Unsupported value type: {kind} (variable {name})") from None


def _sorted(items: list[Any]) -> list[Any]:
    try:
        return sorted(items)
    except TypeError:
        return items


def as_text(value: Any) -> str:
    """Return a text itself, a container as JSON, and "" for values that are always small."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, list | dict) else ""


async def awaited(answer: Awaitable[Any]) -> Any:
    """Await an awaitable that is not a coroutine, for asyncio.run."""
    return await answer


def tool_result(value: Any) -> Any:
    """Return a tool's result as JSON data; as text if it cannot be expressed in JSON."""
    found = _make_jsonable(value)
    try:
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError):
        return str(found)
    return found


def last_value(box: SyncSandbox, result: SandboxResult) -> Any:
    """Return the value of the last line as JSON data; as text if JSON cannot express it."""
    value = result.value
    if isinstance(value, Opaque) and value.reason == TOO_LARGE:
        try:
            value = box.get_variable("_", plain=True)
        except VariableError:
            return value.repr
    return as_json(value)


def message_of(result: SandboxResult) -> str:
    """Return the message of an exception without arguments."""
    return (result.error or "").partition(": ")[2] or str(result.exit_code)
