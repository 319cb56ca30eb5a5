"""Checks the names in every class of a guest before the class is made.

This covers every way a name can get into a class body: def, import, for, a decorator.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from atoll.backends.restricted.refusal import refused
from atoll.sandbox.guard import words
from atoll.sandbox.guard.visitor import is_dunder, is_harmless, plain
from atoll.sandbox.guard.words import names_in

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

IMPLICIT = names_in("""
    __module__ __qualname__ __annotations__ __annotate__ __annotate_func__ __classcell__
    __classdictcell__ __classdict__ __conditional_annotations__ __orig_bases__ __type_params__
    __static_attributes__ __firstlineno__
""")
"""Names that the compiler adds to a class; guest code cannot bind them."""
_ADVICE = "leave it out, or choose another name"


def check_names(space: MutableMapping[str, Any], allowed: frozenset[str] = frozenset()) -> None:
    """Refuse a class with reserved names, and wrap the hooks that libraries would call."""
    for name in list(space):
        if type(name) is not str or (is_dunder(plain(name)) and not _known(name, allowed)):
            raise refused(f"a class with {name!r}", _ADVICE)
        if plain(name) in words.FRAMES:
            raise refused(f"a class with {name!r}", _ADVICE)
    if "__match_args__" in space:
        _check_match_args(space["__match_args__"])
    if "__getattr__" in space:
        space["__getattr__"] = _hook(space["__getattr__"])


def _known(name: str, allowed: frozenset[str]) -> bool:
    return name in words.DEFINABLE or name in allowed


def _check_match_args(value: Any) -> None:
    if type(value) is not tuple or not all(
        type(name) is str and is_harmless(name) and not name.startswith("_") for name in value
    ):
        raise refused("__match_args__ with such names", "write a tuple of plain names")


def _hook(function: Any) -> Callable[[Any, str], Any]:
    """Return a guest's __getattr__ without answers for attributes that libraries trust."""
    if type(function) is not types.FunctionType:
        raise refused("a __getattr__ that is not a function", "write it as a method")

    def __getattr__(self: Any, name: str) -> Any:  # noqa: N807 - it stands for one
        if name in words.PROTOCOLS:
            raise AttributeError(name)
        return function(self, name)

    return __getattr__


class ClassMaker:
    """Replaces a metaclass: checks the body, then calls the real one."""

    def __init__(self, meta: Any) -> None:
        self._meta = meta

    def __prepare__(self, name: str, bases: Any, /, **keywords: Any) -> Any:
        """Return the dict for the class body."""
        return self._winner(bases).__prepare__(name, bases, **keywords)

    def __call__(self, name: str, bases: Any, space: Any, /, **keywords: Any) -> Any:
        """Return the class."""
        check_names(space, IMPLICIT)
        return self._winner(bases)(name, bases, space, **keywords)

    def _winner(self, bases: Any) -> Any:
        """Return the most derived metaclass, as Python does; Python itself reports a conflict."""
        found = self._meta or type
        for base in bases:
            if issubclass(type(base), found):
                found = type(base)
        return found
