"""Describes the variables of a guest: name, type, bytes and shape of each, without reading values.

No method of a guest's class is called: lengths and sizes come from the built-in base classes. What
numpy and pandas say of their own objects is asked under a guard.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..shared.messages import Json, Names

MAX_VARIABLES = 2_000
MAX_TEXT = 200
MAX_SHAPE = 32
_SIZED = (str, bytes, bytearray, list, tuple, dict, set, frozenset, range, memoryview)
_WEIGHED = (int, float, complex)
_LIBRARIES = ("numpy", "pandas")
_module_of = type.__dict__["__module__"].__get__
_qualname_of = type.__dict__["__qualname__"].__get__
_mro_of = type.__dict__["__mro__"].__get__


def describe(namespace: Names, hidden: bool) -> Json:
    """List [name, type, bytes, shape] of the variables, names with an underscore if `hidden`."""
    rows: list[list[Any]] = []
    for name, value in list(namespace.items()):
        if type(name) is not str or name == "__builtins__":
            continue
        if not hidden and (name.startswith("_") or (name == "context" and value is None)):
            continue
        if len(rows) == MAX_VARIABLES:
            return {"variables": rows, "truncated": True}
        size, shape = _measure(value)
        rows.append([name[:MAX_TEXT], _type_name(type(value))[:MAX_TEXT], size, shape])
    return {"variables": rows, "truncated": False}


def _type_name(kind: type) -> str:
    module, name = _text(_module_of(kind)), _text(_qualname_of(kind))
    return name if module in ("", "builtins", "__main__") else module + "." + name


def _text(value: Any) -> str:
    """Return a str that is exactly one; a class may claim any module, of any type."""
    return value if type(value) is str else ""


def _measure(value: Any) -> tuple[int | None, list[int] | None]:
    """Return the bytes that the object takes and its shape, each None if it is not known."""
    kind = type(value)
    for base in _mro_of(kind):
        if base in _SIZED:
            return base.__sizeof__(value), [base.__len__(value)]
        if base in _WEIGHED:
            return base.__sizeof__(value), None
    if _text(_module_of(kind)).split(".")[0] not in _LIBRARIES:
        return None, None
    try:
        return _measure_array(value)
    except Exception:  # a class of the guest's may only say that it is one of theirs
        return None, None


def _measure_array(value: Any) -> tuple[int | None, list[int] | None]:
    shape = [int(length) for length in value.shape[:MAX_SHAPE]]
    if hasattr(value, "memory_usage"):  # pandas
        usage = value.memory_usage()
        return int(usage.sum() if hasattr(usage, "sum") else usage), shape
    return int(value.nbytes), shape
