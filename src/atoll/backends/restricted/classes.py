"""How guest code makes classes: every name is checked, and powerful classes have stand-ins.

`type` and other metaclasses make a class of any dict; an array's class makes an array over any
memory. A stand-in works in isinstance and annotations, and its call is checked. It is not a class,
so nothing can derive from it.
"""

from __future__ import annotations

import abc
import builtins
import sys
import types
import typing
from typing import TYPE_CHECKING, Any

from atoll.backends.restricted.access import GUEST, refused
from atoll.sandbox.guard import words
from atoll.sandbox.guard.visitor import is_dunder, is_harmless, plain
from atoll.text.tables import names_in

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from atoll.backends.restricted.access import Access

IMPLICIT = names_in("""
    __module__ __qualname__ __annotations__ __annotate__ __annotate_func__ __classcell__
    __classdictcell__ __classdict__ __conditional_annotations__ __orig_bases__ __type_params__
    __static_attributes__ __firstlineno__
""")
"""Names that the compiler adds to a class; guest code cannot bind them."""
_TYPE_HINT: Any = vars(typing)["Type"]
"""Represents `type` in an annotation: unlike `type[...]` it cannot be called."""
_UNION: Any = vars(typing)["Union"]
_NO_METACLASS = "write a class decorator or __init_subclass__ instead"
_NO_ARRAY_CLASS = "keep an array in an attribute, or make one by np.array, np.zeros"


def check_names(space: MutableMapping[str, Any], allowed: frozenset[str] = frozenset()) -> None:
    """Refuse a class with reserved names, and wrap the hooks that libraries would call.

    This covers every way a name can get into a class body: def, import, for, a decorator.
    """
    for name in list(space):
        known = type(name) is str and (name in words.DEFINABLE or name in allowed)
        if not known and (
            type(name) is not str or is_dunder(plain(name)) or plain(name) in words.FRAMES
        ):
            raise refused(f"a class with {name!r}", "leave it out, or choose another name")
    fields = space.get("__match_args__", ())
    if type(fields) is not tuple or not all(
        type(name) is str and is_harmless(name) and not name.startswith("_") for name in fields
    ):
        raise refused("__match_args__ with such names", "write a tuple of plain names")
    if "__getattr__" in space:
        space["__getattr__"] = _hook(space["__getattr__"])


def _hook(function: Any) -> Callable[[Any, str], Any]:
    """Return a guest's __getattr__ without answers for attributes that libraries trust."""
    if type(function) is not types.FunctionType:
        raise refused("a __getattr__ that is not a function", "write it as a method")

    def __getattr__(self: Any, name: str) -> Any:  # noqa: N807 - it stands for one
        if name in words.PROTOCOLS:
            raise AttributeError(name)
        return function(self, name)

    return __getattr__


class StandIn:
    """Keeps the real class where guest code can neither read nor replace it."""

    __slots__ = ("_of",)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, _real(self))

    def __subclasscheck__(self, cls: Any) -> bool:
        return issubclass(_real(cls) if isinstance(cls, StandIn) else cls, _real(self))

    def __or__(self, other: Any) -> Any:
        return _UNION[_hint(self), _hint(other)]

    __ror__ = __or__

    def __repr__(self) -> str:
        return repr(_real(self))


class Metaclass(StandIn):
    """`type`, ABCMeta and other metaclasses."""

    __slots__ = ()

    def __mro_entries__(self, _bases: Any) -> Any:
        raise refused("a metaclass of your own", _NO_METACLASS)

    def __getitem__(self, item: Any) -> Any:
        return _TYPE_HINT[item]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the class of a value, or a class made of a name, bases and a dict."""
        family: StandIns = object.__getattribute__(self, "_of")[1]
        if len(args) == 1 and self is family.type:
            return family.type_of(args[0])
        name, bases, namespace = args
        space = dict(namespace)
        check_names(space)
        _check_bases(bases)
        return _real(self)(name, tuple(bases), {**space, "__module__": GUEST}, **kwargs)


class ArrayClass(StandIn):
    """numpy.ndarray and its subclasses."""

    __slots__ = ()

    def __mro_entries__(self, _bases: Any) -> Any:
        raise refused("a subclass of an array", _NO_ARRAY_CLASS)

    def __getitem__(self, _item: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name in words.AMBIGUOUS:
            raise refused(f"the attribute {name} of an array")
        return getattr(_real(self), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return an array with its own memory; GuardError for one over other memory."""
        if len(args) > 2 or set(kwargs) - {"shape", "dtype", "order", "data", "mask", "copy"}:
            raise refused("an array over other memory", _NO_ARRAY_CLASS)
        return _real(self)(*args, **kwargs)


class StandIns:
    """The stand-ins of one guest, and how it makes a class by a statement."""

    def __init__(self, access: Access) -> None:
        self._known: dict[Any, Any] = {}
        self.type = self.shown(type)
        self.abc = self.shown(abc.ABCMeta)
        access.type_of = self.type_of

    def shown(self, value: Any) -> Any:
        """Return a value for guest code: the stand-in of a class that needs one."""
        if not isinstance(value, type):
            return value
        if value not in self._known and (issubclass(value, type) or _is_array(value)):
            made = object.__new__(Metaclass if issubclass(value, type) else ArrayClass)
            object.__setattr__(made, "_of", (value, self))  # no __init__: it could be called again
            self._known[value] = made
        return self._known.get(value, value)

    def type_of(self, value: Any) -> Any:
        """Return type(value): the class, or its stand-in."""
        return self.type if isinstance(value, StandIn) else self.shown(type(value))

    def build(self, body: Callable[..., Any], name: str, *bases: Any, **keywords: Any) -> Any:
        """Run a class statement and return the class."""
        wanted = keywords.pop("metaclass", None)
        if wanted is not None and type(wanted) is not Metaclass:
            raise refused("a metaclass of your own", _NO_METACLASS)
        _check_bases(bases)
        maker = _ClassMaker(type if wanted is None else _real(wanted))
        return builtins.__build_class__(body, name, *bases, metaclass=maker, **keywords)


class _ClassMaker:
    """Replaces a metaclass: checks the body, then calls the real one."""

    def __init__(self, meta: type) -> None:
        self._meta = meta

    def __prepare__(self, name: str, bases: Any, /, **keywords: Any) -> Any:
        return self._winner(bases).__prepare__(name, bases, **keywords)

    def __call__(self, name: str, bases: Any, space: Any, /, **keywords: Any) -> Any:
        check_names(space, IMPLICIT)
        return self._winner(bases)(name, bases, space, **keywords)

    def _winner(self, bases: Any) -> Any:
        """Return the most derived metaclass, as Python does; Python itself reports a conflict."""
        meta = self._meta
        for base in bases:
            if issubclass(type(base), meta):
                meta = type(base)
        return meta


def _real(made: StandIn) -> Any:
    """Return the class behind a stand-in."""
    return object.__getattribute__(made, "_of")[0]


def _is_array(cls: type) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and issubclass(cls, numpy.ndarray)


def _hint(value: Any) -> Any:
    """Return the representation of a value in a union, from which no class can be extracted."""
    if type(value) is Metaclass:
        return _TYPE_HINT
    return typing.Any if isinstance(value, StandIn) else value


def _check_bases(bases: tuple[Any, ...]) -> None:
    for base in bases:
        if isinstance(base, StandIn):
            base.__mro_entries__(())  # type: ignore[attr-defined]
        if isinstance(base, type) and (issubclass(base, type) or _is_array(base)):
            raise refused("a class over that", _NO_METACLASS)
