"""Checked versions of functions that use a name, a class or a stream without a check."""

from __future__ import annotations

import builtins
import collections
import contextlib
import dataclasses
import enum
import functools
import importlib
import linecache
import sys
import typing
from typing import TYPE_CHECKING, Any

from atoll.backends.restricted import library, rewrite
from atoll.backends.restricted.access import (
    GUEST,
    Attributes,
    GuardError,
    OpenNamespace,
    is_guest_class,
    refused,
)
from atoll.backends.restricted.classes import check_names
from atoll.sandbox.guard import words
from atoll.sandbox.guard.visitor import is_dunder, is_harmless
from atoll.text.tables import names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from atoll.backends.restricted.access import Access
    from atoll.backends.restricted.classes import StandIns
    from atoll.guest.shared.messages import Names

HARMLESS = names_in("""
    abs aiter all anext any ascii bin bool bytearray bytes callable chr classmethod complex dict
    divmod enumerate filter float format frozenset hash hex id int isinstance issubclass iter len
    list map max memoryview min next object oct ord pow print property range repr reversed round
    set slice sorted staticmethod str sum super tuple zip NotImplemented Ellipsis __debug__
""")
"""Built-ins that guest code gets as they are."""
BEHIND_THE_SCENES = ("numpy", "_strptime")
"""Modules that C code may import while guest code runs; guest code does not get them."""
_MISSING = object()
_namedtuple: Any = collections.namedtuple  # noqa: PYI024 - what is checked
_enum_create: Any = vars(enum.EnumType)["_create_"]


def make_builtins(
    namespace: Names, access: Access, standins: StandIns, trusted: Callable[[], Any]
) -> Names:
    """Return the built-ins of guest code: harmless ones, and checked versions."""
    modules = library.Library(_by_module(access, standins), trusted, standins.shown)

    def getattr_(value: Any, name: str, default: Any = _MISSING, /) -> Any:
        try:
            return access.any(value, name)
        except AttributeError:
            if default is _MISSING:
                raise
            return default

    def hasattr_(value: Any, name: str, /) -> bool:
        try:
            access.any(value, name)
        except (AttributeError, GuardError):
            return False
        return True

    def globals_() -> Attributes:
        return Attributes({n: v for n, v in namespace.items() if not is_dunder(n)})

    return {
        **{name: kind for name, kind in vars(builtins).items() if _is_exception(kind)},
        **{name: getattr(builtins, name) for name in HARMLESS},
        "getattr": getattr_,
        "hasattr": hasattr_,
        "setattr": lambda v, name, new, /: setattr(access.target(v, name), name, new),
        "delattr": lambda v, name, /: delattr(access.target(v, name), name),
        "vars": lambda *v: access.attributes_of(v[0]) if v else globals_(),
        "globals": globals_,
        "dir": lambda *v: access.names_of(v[0]) if v else sorted(globals_()),
        "exit": _exit,
        "quit": _exit,
        "type": standins.type,
        "GuardError": GuardError,
        "__build_class__": standins.build,
        "__import__": _import_for_c,
        rewrite.GET: access.get,
        rewrite.TARGET: access.target,
        rewrite.LOAD: modules.load,
        rewrite.TAKE: modules.take,
    }


def _by_module(access: Access, standins: StandIns) -> Mapping[str, Mapping[str, Any]]:
    """Return the functions of modules that the backend implements itself."""

    def update_wrapper(wrapper: Any, wrapped: Any, **_options: Any) -> Any:
        access.target(wrapper, "__wrapped__")
        return functools.update_wrapper(wrapper, wrapped)  # with what it copies by default

    def attrgetter(*names: str) -> Callable[[Any], Any]:
        def walk(value: Any, path: str) -> Any:
            return functools.reduce(access.any, path.split("."), value)

        if not all(type(name) is str for name in names):
            raise TypeError("attribute name must be a plain string")
        if len(names) == 1:
            return lambda value: walk(value, names[0])
        return lambda value: tuple(walk(value, name) for name in names)

    def methodcaller(name: str, /, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return lambda value: access.any(value, name)(*args, **kwargs)

    return {
        "abc": {"ABCMeta": standins.abc},
        "collections": {"namedtuple": namedtuple},
        "contextlib": {
            "redirect_stdout": functools.partial(_redirect, "stdout"),
            "redirect_stderr": functools.partial(_redirect, "stderr"),
        },
        "dataclasses": {"dataclass": _dataclass, "make_dataclass": _make_dataclass},
        "functools": {
            "update_wrapper": update_wrapper,
            "wraps": lambda wrapped, **_: lambda wrapper: update_wrapper(wrapper, wrapped),
        },
        "operator": {"attrgetter": attrgetter, "methodcaller": methodcaller},
        "sys": {
            "exit": _exit,
            "stdout": library.output("stdout"),
            "stderr": library.output("stderr"),
            "stdin": library.standard_input(),
            "argv": sys.argv,
        },
        "types": {"SimpleNamespace": OpenNamespace},
        "typing": {"get_origin": lambda hint: standins.shown(typing.get_origin(hint))},
    }


def mend_library() -> None:
    """Add checks where libraries would evaluate text, or make classes with a guest's names.

    The process serves one guest, so its library is changed permanently.
    """
    vars(collections)["namedtuple"] = namedtuple  # typing.NamedTuple asks for it
    vars(typing)["get_type_hints"] = _no_type_hints  # singledispatch asks for it
    vars(linecache).update(dict.fromkeys(("updatecache", "checkcache", "lazycache"), _no_lines))
    setattr(typing.ForwardRef, "_evaluate", _no_type_hints)  # noqa: B010 - it is private
    setattr(enum.EnumType, "_create_", _create_enum)  # noqa: B010
    if sys.version_info >= (3, 14):
        _mend_annotations(importlib.import_module("annotationlib"))


def _mend_annotations(annotationlib: Any) -> None:
    """Have annotations evaluated by the function that the compiler made of them.

    Else typing.NamedTuple makes another function of its code, with other globals: an operation
    that is refused for guests. It is still tried, and refused, if a name is not defined yet.
    """
    real, formats = annotationlib.call_annotate_function, annotationlib.Format

    def call_annotate_function(annotate: Any, format: Any, **options: Any) -> Any:  # noqa: A002
        if format == formats.STRING:
            return real(annotate, format, **options)
        try:
            return annotate(formats.VALUE)
        except NameError:
            return real(annotate, format, **options)

    annotationlib.call_annotate_function = call_annotate_function


def namedtuple(typename: str, field_names: Any, **options: Any) -> Any:
    """Return collections.namedtuple(...); refuse fields whose names are reserved."""
    options["module"] = options.get("module") or GUEST
    made = _namedtuple(typename, field_names, **options)
    if not all(is_harmless(name) for name in made._fields):
        if any(name in words.FRAMES for name in made._fields):
            raise refused(f"a namedtuple with the fields {made._fields}", "choose other names")
        setattr(made, "__match_args__", ())  # noqa: B010 - mypy takes it for constant
    return made


def _dataclass(cls: type | None = None, /, **flags: Any) -> Any:
    """Apply dataclasses.dataclass, which generates code with field names: check them first."""
    if cls is None:
        return functools.partial(_dataclass, **flags)
    if not isinstance(cls, type) or not is_guest_class(cls):
        raise refused("a dataclass of a class that is not of this session", "subclass it")
    names = [*_check_fields(cls.__annotations__)]
    for base in cls.__mro__:
        inherited = vars(base).get("__dataclass_fields__", {}).values()
        names += [field.name for field in inherited]
    _check_fields(dict.fromkeys(names))
    if not all(map(is_harmless, names)):
        flags["match_args"] = False
    return dataclasses.dataclass(**flags)(cls)


def _make_dataclass(
    cls_name: str, fields: Any, *, bases: Any = (), namespace: Any = None, **flags: Any
) -> Any:
    space = dict(namespace or {})
    check_names(space)
    rows = [(row, Any) if isinstance(row, str) else tuple(row) for row in fields]
    space["__annotations__"] = _check_fields({str(row[0]): row[1] for row in rows})
    space |= {str(row[0]): row[2] for row in rows if len(row) > 2}
    return _dataclass(type(cls_name, tuple(bases), {**space, "__module__": GUEST}), **flags)


def _check_fields(annotations: Any) -> Names:
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
    names = list(names.items() if isinstance(names, dict) else names)
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


def _import_for_c(name: str, *_rest: Any) -> None:
    """Serve imports of C code, which takes the module from sys.modules itself."""
    if name in sys.modules:
        return
    if name.partition(".")[0] not in BEHIND_THE_SCENES:
        raise refused(f"the module {name}")
    builtins.__import__(name)


def _is_exception(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _exit(code: Any = None, /) -> None:
    raise SystemExit(code)


@contextlib.contextmanager
def _redirect(name: str, target: Any) -> Iterator[Any]:
    before = getattr(sys, name)
    setattr(sys, name, target)
    try:
        yield target
    finally:
        setattr(sys, name, before)
