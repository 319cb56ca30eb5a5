"""Checked versions of library functions that use a name, a class or a stream without a check."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import linecache
import pprint
import sys
import typing
from typing import TYPE_CHECKING, Any

from atoll.backends.restricted.access import GUEST, OpenNamespace, is_guest_class
from atoll.backends.restricted.classes import check_names
from atoll.backends.restricted.refusal import refused
from atoll.backends.restricted.streams import GuestInput, GuestStream
from atoll.sandbox.guard import words
from atoll.sandbox.guard.visitor import is_harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from atoll.backends.restricted.access import Access
    from atoll.backends.restricted.standins import StandIns

_namedtuple: Any = collections.namedtuple  # noqa: PYI024 - what is checked
_enum_create: Any = vars(enum.EnumType)["_create_"]


def table(access: Access, standins: StandIns) -> Mapping[str, Mapping[str, Any]]:
    """Return the functions that the backend implements itself, by module."""
    makers = _Makers(access)
    return {
        "abc": {"ABCMeta": standins.abc},
        "collections": {"namedtuple": namedtuple},
        "contextlib": {
            "redirect_stdout": functools.partial(_redirect, "stdout"),
            "redirect_stderr": functools.partial(_redirect, "stderr"),
        },
        "dataclasses": {"dataclass": makers.dataclass, "make_dataclass": makers.make_dataclass},
        "functools": {"wraps": makers.wraps, "update_wrapper": makers.update_wrapper},
        "operator": {"attrgetter": makers.attrgetter, "methodcaller": makers.methodcaller},
        "pprint": {"pprint": _pprint, "pp": functools.partial(_pprint, sort_dicts=False)},
        "sys": {
            "exit": _exit,
            "stdout": GuestStream.over("stdout"),
            "stderr": GuestStream.over("stderr"),
            "stdin": object.__new__(GuestInput),
            "argv": sys.argv,
        },
        "types": {"SimpleNamespace": OpenNamespace},
        "typing": {"get_origin": standins.origin},
    }


def mend_library() -> None:
    """Add checks where libraries would evaluate text, or make classes with a guest's names.

    The process serves one guest, so its library is changed permanently.
    """
    vars(collections)["namedtuple"] = namedtuple  # typing.NamedTuple asks for it
    vars(typing)["get_type_hints"] = _no_type_hints  # singledispatch asks for it
    changed: dict[Any, dict[str, Any]] = {
        typing.ForwardRef: {"_evaluate": _no_type_hints},
        enum.EnumType: {"_create_": _create_enum},
        linecache: dict.fromkeys(("updatecache", "checkcache", "lazycache"), _no_lines),
    }
    for owner, new in changed.items():
        for name, value in new.items():
            setattr(owner, name, value)


def namedtuple(typename: str, field_names: Any, **options: Any) -> Any:
    """Return collections.namedtuple(...); refuse fields whose names are reserved."""
    options["module"] = options.get("module") or GUEST
    made = _namedtuple(typename, field_names, **options)
    if not all(is_harmless(name) for name in made._fields):
        if any(name in words.FRAMES for name in made._fields):
            raise refused(f"a namedtuple with the fields {made._fields}", "choose other names")
        setattr(made, "__match_args__", ())  # noqa: B010 - mypy takes it for constant
    return made


class _Makers:
    def __init__(self, access: Access) -> None:
        self._access = access

    def dataclass(self, cls: type | None = None, /, **flags: Any) -> Any:
        """Apply dataclasses.dataclass, which generates code with field names: check them first."""

        def wrap(cls: type) -> type:
            names = _field_names(cls)
            if not all(map(is_harmless, names)):
                flags["match_args"] = False
            return dataclasses.dataclass(**flags)(cls)

        return wrap if cls is None else wrap(cls)

    def make_dataclass(
        self, cls_name: str, fields: Any, *, bases: Any = (), namespace: Any = None, **flags: Any
    ) -> Any:
        """dataclasses.make_dataclass."""
        space = dict(namespace or {})
        check_names(space)
        rows = [(row, Any) if isinstance(row, str) else tuple(row) for row in fields]
        space["__annotations__"] = {str(row[0]): row[1] for row in rows}
        space |= {str(row[0]): row[2] for row in rows if len(row) > 2}
        _check_fields(space["__annotations__"])
        cls = type(cls_name, tuple(bases), {**space, "__module__": GUEST})
        return self.dataclass(cls, **flags)

    def update_wrapper(self, wrapper: Any, wrapped: Any, **_options: Any) -> Any:
        """functools.update_wrapper, with what it copies by default."""
        self._access.target(wrapper, "__wrapped__")
        return functools.update_wrapper(wrapper, wrapped)

    def wraps(self, wrapped: Any, **_options: Any) -> Any:
        """functools.wraps, with what it copies by default."""
        return lambda wrapper: self.update_wrapper(wrapper, wrapped)

    def attrgetter(self, *names: str) -> Callable[[Any], Any]:
        """Return operator.attrgetter(...) with a check of every step."""

        def walk(value: Any, path: str) -> Any:
            for name in path.split("."):
                value = self._access.any(value, name)
            return value

        for name in names:
            if type(name) is not str:
                raise TypeError("attribute name must be a plain string")
        if len(names) == 1:
            return lambda value: walk(value, names[0])
        return lambda value: tuple(walk(value, name) for name in names)

    def methodcaller(self, name: str, /, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """Return operator.methodcaller(...) with a check."""
        return lambda value: self._access.any(value, name)(*args, **kwargs)


def _field_names(cls: type) -> list[str]:
    """Return the names of a class's fields, also of its bases; GuardError if one is reserved."""
    if not isinstance(cls, type) or not is_guest_class(cls):
        raise refused("a dataclass of a class that is not of this session", "subclass it")
    names = []
    for base in cls.__mro__:
        fields = vars(base).get("__dataclass_fields__", {})
        names += [field.name for field in fields.values()]
        if is_guest_class(base):
            names += list(_check_fields(base.__annotations__ if base is cls else {}))
    _check_fields(dict.fromkeys(names))
    return names


def _check_fields(annotations: Any) -> Any:
    if type(annotations) is not dict:
        raise refused("annotations that are not a dict", "write them in the class")
    for name in annotations:
        if type(name) is not str or not name.isidentifier() or name in words.FRAMES:
            raise refused(f"a field named {name!r}", "choose another name")
    return annotations


def _create_enum(cls: Any, class_name: str, names: Any, **options: Any) -> Any:
    """Return Enum("Name", names); refuse reserved names of members."""
    if isinstance(names, str):
        names = names.replace(",", " ").split()
    elif isinstance(names, dict):
        names = list(names.items())
    else:
        names = list(names)
    for row in names:
        name = row if isinstance(row, str) else row[0]
        if type(name) is not str or name.startswith("_"):
            raise refused(f"a member named {name!r}", "choose another name")
    options["module"] = options.get("module") or GUEST
    return _enum_create(cls, class_name, names, **options)


def _no_type_hints(*_args: Any, **_kwargs: Any) -> Any:
    raise refused("evaluating annotations", "name the types yourself")


def _no_lines(*_args: Any) -> list[str]:
    """Return no source lines: a guest that fakes a frame could choose which file is read."""
    return []


def _exit(code: Any = None, /) -> None:
    raise SystemExit(code)


def _pprint(value: Any, stream: Any = None, *args: Any, **kwargs: Any) -> None:
    print(pprint.pformat(value, *args, **kwargs), file=stream)


@contextlib.contextmanager
def _redirect(name: str, target: Any) -> Iterator[Any]:
    before = getattr(sys, name)
    setattr(sys, name, target)
    try:
        yield target
    finally:
        setattr(sys, name, before)
