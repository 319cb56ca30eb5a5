"""Exceptions for calls that failed on the host: each keeps the type name and message it had there.

A tool that raises `ValueError("no such code")` on the host raises an exception in the guest that is
a ValueError and a HostCallError, so `except ValueError` and `except HostCallError` both catch it.
No traceback and no path of the host crosses.
"""

from __future__ import annotations

import builtins

from ..shared import values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..shared.messages import Json

MAX_KINDS = 1000
NOT_REBUILT = frozenset(
    {
        "StopIteration",
        "StopAsyncIteration",
        "UnicodeDecodeError",
        "UnicodeEncodeError",
        "UnicodeTranslateError",
        "ExceptionGroup",
    }
)
"""Built-in exceptions that control loops, or that cannot be made from one message."""


class HostCallError(RuntimeError):
    """The host refused a call, or its handler failed."""

    __module__ = "builtins"  # where guest code finds it, and pickle


_BUILT_IN = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and name not in NOT_REBUILT
}
"""Taken when this is loaded, before guest code can replace a built-in."""
_kinds: dict[str, type[HostCallError]] = {}


def from_error(error: Json) -> HostCallError:
    """Return the exception for the error of an answer: of its own type if a tool raised it."""
    data = error.get("data")
    if isinstance(data, dict) and isinstance(data.get("type"), str):
        try:
            return _kind(data["type"])(values.decode(data.get("message", "")))
        except Exception:
            pass  # a type that cannot be rebuilt here: the plain one says the same
    return HostCallError(error["message"])


def _kind(name: str) -> type[HostCallError]:
    if name not in _kinds:
        if not name.isidentifier() or len(_kinds) >= MAX_KINDS:
            raise ValueError(name)
        _kinds[name] = _make(name, _BUILT_IN.get(name))
    return _kinds[name]


def _make(name: str, built_in: type[Exception] | None) -> type[HostCallError]:
    known = built_in is None or issubclass(HostCallError, built_in)
    bases: Any = (HostCallError,) if known else (built_in, HostCallError)
    plain = built_in or HostCallError

    def __reduce__(self: Any) -> Any:  # noqa: N807 - a state keeps it as the plain type
        return plain, self.args

    return type(name, bases, {"__module__": "builtins", "__reduce__": __reduce__})
