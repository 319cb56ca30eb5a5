"""`type`, ABCMeta and their like as guest code sees them: to ask with, and to make classes with."""

from __future__ import annotations

import abc
import builtins
from typing import TYPE_CHECKING, Any

from atoll.backends.restricted.access import GUEST
from atoll.backends.restricted.refusal import refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.backends.restricted.access import Access

_NO_METACLASS = "write a class decorator or __init_subclass__ instead"


class Metaclass:
    """Stands for a metaclass; holds it where no guest code can reach it or put another."""

    __slots__ = ("_of",)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, _real(self))

    def __subclasscheck__(self, cls: Any) -> bool:
        return not isinstance(cls, Metaclass) and issubclass(cls, _real(self))

    def __mro_entries__(self, _bases: Any) -> Any:
        raise refused("a metaclass of your own", _NO_METACLASS)

    def __getitem__(self, item: Any) -> Any:
        return _real(self)[item]

    def __or__(self, other: Any) -> Any:
        return _real(self) | (_real(other) if type(other) is Metaclass else other)

    __ror__ = __or__

    def __repr__(self) -> str:
        return repr(_real(self))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As a metaclass is called: to ask for a class, or to make one."""
        return _family_of(self).call(self, args, kwargs)


class Metaclasses:
    """The stand-ins of one guest, and the two ways to a class: a statement, and type()."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._known: dict[type, Metaclass] = {}
        self.type = self.stand_in(type)
        self.abc = self.stand_in(abc.ABCMeta)
        access.type_of = self.type_of

    def stand_in(self, real: type) -> Metaclass:
        """What guest code gets in place of a metaclass."""
        if real not in self._known:
            made = object.__new__(Metaclass)
            object.__setattr__(made, "_of", (real, self))
            self._known[real] = made
        return self._known[real]

    def type_of(self, value: Any) -> Any:
        """type(value): its class, or a stand-in if that is a metaclass."""
        if type(value) is Metaclass:
            return self.type
        kind = type(value)
        return self.stand_in(kind) if issubclass(kind, type) else kind

    def call(self, asked: Metaclass, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """type(x), or a class made of a name, bases and a dict."""
        if len(args) == 1 and asked is self.type:
            return self.type_of(args[0])
        name, bases, namespace = args
        space = dict(namespace)
        self._access.check_names(space)
        _check_bases(bases)
        return _real(asked)(name, tuple(bases), {**space, "__module__": GUEST}, **kwargs)

    def build(self, body: Callable[..., Any], name: str, *bases: Any, **keywords: Any) -> Any:
        """A class statement."""
        if "metaclass" in keywords:
            wanted = keywords["metaclass"]
            if type(wanted) is not Metaclass:
                raise refused("a metaclass of your own", _NO_METACLASS)
            keywords["metaclass"] = _real(wanted)
        _check_bases(bases)
        return builtins.__build_class__(body, name, *bases, **keywords)


def _check_bases(bases: tuple[Any, ...]) -> None:
    for base in bases:
        if type(base) is Metaclass or (isinstance(base, type) and issubclass(base, type)):
            raise refused("a metaclass of your own", _NO_METACLASS)


def _real(made: Metaclass) -> Any:
    return object.__getattribute__(made, "_of")[0]


def _family_of(made: Metaclass) -> Metaclasses:
    family: Metaclasses = object.__getattribute__(made, "_of")[1]
    return family
