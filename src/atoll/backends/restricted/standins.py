"""Stand-ins for classes that are too powerful to give to guest code.

`type` and other metaclasses make a class of any dict; an array's class makes an array over any
memory. A stand-in works in isinstance and annotations, and its call is checked. It is not a class,
so nothing can derive from it.
"""

from __future__ import annotations

import abc
import builtins
import sys
import typing
from typing import TYPE_CHECKING, Any

from atoll.backends.restricted.access import GUEST
from atoll.backends.restricted.classes import ClassMaker, check_names
from atoll.backends.restricted.refusal import refused
from atoll.sandbox.guard import words

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.backends.restricted.access import Access

_TYPE_HINT: Any = vars(typing)["Type"]
"""Represents `type` in an annotation: unlike `type[...]` it cannot be called."""
_UNION: Any = vars(typing)["Union"]
_NO_METACLASS = "write a class decorator or __init_subclass__ instead"
_NO_ARRAY_CLASS = "keep an array in an attribute, or make one by np.array, np.zeros"


class StandIn:
    """Keeps the real class where guest code can neither read nor replace it."""

    __slots__ = ("_of",)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, real(self))

    def __subclasscheck__(self, cls: Any) -> bool:
        cls = real(cls) if isinstance(cls, StandIn) else cls
        return issubclass(cls, real(self))

    def __or__(self, other: Any) -> Any:
        return _UNION[_hint(self), _hint(other)]

    __ror__ = __or__

    def __repr__(self) -> str:
        return repr(real(self))


class Metaclass(StandIn):
    """`type`, ABCMeta and other metaclasses."""

    __slots__ = ()

    def __mro_entries__(self, _bases: Any) -> Any:
        raise refused("a metaclass of your own", _NO_METACLASS)

    def __getitem__(self, item: Any) -> Any:
        return _TYPE_HINT[item]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the class of a value, or make a class."""
        return _family(self).call(self, args, kwargs)


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
        return getattr(real(self), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return an array with its own memory; GuardError for one over other memory."""
        if len(args) > 2 or set(kwargs) - {"shape", "dtype", "order", "data", "mask", "copy"}:
            raise refused("an array over other memory", _NO_ARRAY_CLASS)
        return real(self)(*args, **kwargs)


class StandIns:
    """The stand-ins of one guest, and the two ways to make a class: a statement, and type()."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._known: dict[Any, Any] = {}
        self.type = self.shown(type)
        self.abc = self.shown(abc.ABCMeta)
        access.type_of = self.type_of

    def shown(self, value: Any) -> Any:
        """Return a value for guest code: the stand-in of a class that needs one."""
        if not isinstance(value, type):
            return value
        if value not in self._known:
            if issubclass(value, type):
                self._known[value] = _make(Metaclass, value, self)
            elif _is_array(value):
                self._known[value] = _make(ArrayClass, value, self)
        return self._known.get(value, value)

    def type_of(self, value: Any) -> Any:
        """Return type(value): the class, or its stand-in."""
        return self.type if isinstance(value, StandIn) else self.shown(type(value))

    def origin(self, hint: Any) -> Any:
        """Return typing.get_origin(hint)."""
        return self.shown(typing.get_origin(hint))

    def call(self, asked: Metaclass, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return type(x), or a class made of a name, bases and a dict."""
        if len(args) == 1 and asked is self.type:
            return self.type_of(args[0])
        name, bases, namespace = args
        space = dict(namespace)
        check_names(space)
        _check_bases(bases)
        return real(asked)(name, tuple(bases), {**space, "__module__": GUEST}, **kwargs)

    def build(self, body: Callable[..., Any], name: str, *bases: Any, **keywords: Any) -> Any:
        """Run a class statement and return the class."""
        wanted = keywords.pop("metaclass", None)
        if wanted is not None and type(wanted) is not Metaclass:
            raise refused("a metaclass of your own", _NO_METACLASS)
        _check_bases(bases)
        maker = ClassMaker(None if wanted is None else real(wanted))
        return builtins.__build_class__(body, name, *bases, metaclass=maker, **keywords)


def real(made: StandIn) -> Any:
    """Return the class behind a stand-in."""
    return object.__getattribute__(made, "_of")[0]


def _family(made: StandIn) -> StandIns:
    family: StandIns = object.__getattribute__(made, "_of")[1]
    return family


def _make(kind: type[StandIn], value: type, family: StandIns) -> StandIn:
    made = object.__new__(kind)  # no __init__: it could be called again
    object.__setattr__(made, "_of", (value, family))
    return made


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
