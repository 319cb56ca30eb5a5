"""The run-time functions of code compiled by RestrictedPython: its guards, its print."""

from __future__ import annotations

import importlib
import operator
from typing import TYPE_CHECKING, Any

from atoll.backends.restricted.names import import_for_c

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.backends.restricted.access import Access
    from atoll.backends.restricted.library import Library

_IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "+=": operator.iadd, "-=": operator.isub, "*=": operator.imul, "/=": operator.itruediv,
    "//=": operator.ifloordiv, "%=": operator.imod, "**=": operator.ipow, "|=": operator.ior,
    "<<=": operator.ilshift, ">>=": operator.irshift, "^=": operator.ixor, "&=": operator.iand,
    "@=": operator.imatmul,
}  # fmt: skip


def guards(access: Access, library: Library) -> dict[str, Any]:
    """Return the names that RestrictedPython's transformed code uses."""
    library_guards: Any = importlib.import_module("RestrictedPython.Guards")
    printing: Any = importlib.import_module("RestrictedPython.PrintCollector")

    class Collector(printing.PrintCollector):  # type: ignore[misc]
        """Keeps what is printed for `printed`, and prints it."""

        def _call_print(self, *objects: Any, **kwargs: Any) -> None:
            if kwargs.get("file") is None:
                print(*objects, **{**kwargs, "file": self})  # noqa: T201 - what it is for
            print(*objects, **kwargs)  # noqa: T201

    return {
        "_getattr_": access.any,
        "_getitem_": lambda value, key: value[key],
        "_getiter_": iter,
        "_iter_unpack_sequence_": library_guards.guarded_iter_unpack_sequence,
        "_unpack_sequence_": library_guards.guarded_unpack_sequence,
        "_write_": lambda value: Written(access, value),
        "_print_": Collector,
        "_inplacevar_": _in_place,
        "_apply_": lambda function, *args, **kwargs: function(*args, **kwargs),
        "__metaclass__": access.type_of(int),
        "__import__": lambda name, *rest: _import(library, name, *rest),
    }


class Written:
    """Wraps an object that code changes: attributes are checked, items are not."""

    __slots__ = ("_access", "_value")
    _access: Access
    _value: Any

    def __init__(self, access: Access, value: Any) -> None:
        object.__setattr__(self, "_access", access)
        object.__setattr__(self, "_value", value)

    def __setattr__(self, name: str, new: Any) -> None:
        setattr(self._access.target(self._value, name), name, new)

    def __delattr__(self, name: str) -> None:
        delattr(self._access.target(self._value, name), name)

    def __setitem__(self, key: Any, new: Any) -> None:
        self._value[key] = new

    def __delitem__(self, key: Any) -> None:
        del self._value[key]


def _import(library: Library, name: str, *rest: Any) -> Any:
    wanted = rest[2] if len(rest) > 2 else None
    if type(wanted) is list:  # C code takes the module from sys.modules itself
        return import_for_c(name)
    return library.load(name if wanted else f"{name}:")


def _in_place(sign: str, left: Any, right: Any) -> Any:
    return _IN_PLACE[sign](left, right)
