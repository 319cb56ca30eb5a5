"""Checked access of guest code to attributes: reading, writing, and making classes.

SECURITY: this is the backend's innermost check. An attribute is refused unless it clearly belongs
to the guest or is clearly harmless. Checks use type(x), never what an object says about itself.
"""

from __future__ import annotations

import abc
import functools
import io
import types
from typing import TYPE_CHECKING, Any

from atoll.backends.restricted.formatting import Formatting
from atoll.backends.restricted.refusal import refused
from atoll.sandbox.guard import words
from atoll.sandbox.guard.visitor import is_dunder, is_harmless, plain
from atoll.sandbox.guard.words import names_in

if TYPE_CHECKING:
    from collections.abc import Callable

GUEST = "__main__"
PRIVATE = names_in("""
    _asdict _replace _fields _make _field_defaults _value_ _name_ _missing_ _generate_next_value_
    _ignore_ _order_ _member_names_ _repr_html_ _repr_markdown_ _repr_latex_ _repr_svg_ _repr_png_
    _repr_json_
""")
"""Names with an underscore that are public API of libraries."""
HIDDEN = (
    types.ModuleType, types.FrameType, types.CodeType, io.FileIO, io.TextIOWrapper,
    io.BufferedReader, io.BufferedWriter, io.BufferedRandom,
)  # fmt: skip
"""Types whose instances guest code never gets."""
PLAIN = frozenset({int, str, float, bool, list, dict, tuple, set, types.MethodType, type(None)})
STORABLE: dict[str, frozenset[str]] = {
    "decimal.Context": names_in("prec rounding Emin Emax capitals clamp"),
    "textwrap.TextWrapper": names_in(
        "width initial_indent subsequent_indent expand_tabs replace_whitespace break_long_words "
        "fix_sentence_endings drop_whitespace break_on_hyphens tabsize max_lines placeholder"
    ),
    "numpy.ndarray": frozenset({"shape", "real", "imag", "flat"}),
    "numpy.flagsobj": frozenset({"writeable"}),
    "numpy.matrix": frozenset({"shape", "real", "imag", "flat"}),
    "numpy.ma.MaskedArray": frozenset({"shape", "mask", "fill_value", "real", "imag", "flat"}),
    "csv.DictReader": frozenset({"fieldnames"}),
}
"""Attributes that may be set on instances of library classes."""
_module_of = type.__dict__["__module__"].__get__
_mro_of = type.__dict__["__mro__"].__get__
_dict_of = type.__dict__["__dict__"].__get__


def is_guest_class(cls: type) -> bool:
    """Return whether guest code made the class: only those have the module `__main__`."""
    return _module_of(cls) == GUEST  # type: ignore[no-any-return]


class Attributes(dict[str, Any]):
    """A copy of an object's attributes; to change one, set it on the object."""

    def _refuse(self, *_args: Any, **_kwargs: Any) -> Any:
        raise refused("changing __dict__ directly", "set the attribute itself: x.name = value")

    __setitem__ = __delitem__ = update = pop = popitem = setdefault = clear = __ior__ = _refuse


class Access:
    """The checks, for one guest's namespace."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._known: set[tuple[type, str]] = set()
        self._settable: set[tuple[type, str]] = set()
        formatting = Formatting(self.any)
        self._formats: dict[str, Callable[..., Any]] = {
            "format": formatting.format,
            "format_map": formatting.format_map,
        }
        self._answers: dict[str, Callable[[Any], Any]] = {
            "__class__": self._class_of,
            "__dict__": self.attributes_of,
            "__getattribute__": self._reader,
            "__setattr__": functools.partial(self._writer, "__setattr__"),
            "__delattr__": functools.partial(self._writer, "__delattr__"),
            "__annotations__": lambda value: dict(value.__annotations__),
            "__module__": lambda value: str(value.__module__),
            "__dir__": lambda value: lambda: self.names_of(value),
            "format": functools.partial(self._format, "format"),
            "format_map": functools.partial(self._format, "format_map"),
            "obj": _object_of,
            "resize": _resize,
            "register": _register,
            **{name: functools.partial(_not_of_arrays, name) for name in ("tofile", "dump", "dumps",
               "ctypes", "cffi", "capsule", "setflags", "mro", "baseclass")},
        }  # fmt: skip
        self.type_of: Callable[[Any], Any] = type

    def get(self, value: Any, name: str) -> Any:
        """Return value.name, for a name that is not clearly harmless."""
        if type(name) is not str:  # a subclass of str may override comparisons
            raise TypeError("attribute name must be a plain string")
        if (type(value), name) in self._known:
            return _vetted(getattr(value, name), name)
        name = plain(name)
        if name in words.FRAMES:
            raise refused(f"the attribute {name}")
        if (answer := self._answers.get(name)) is not None:
            return _vetted(answer(value), name)
        if is_dunder(name):
            if name not in words.READABLE | words.LOOKED_AT:
                raise refused(f"the attribute {name}")
        elif name.startswith("_") and name not in PRIVATE:
            self._check_private(value, name)
        return _vetted(getattr(value, name), name)

    def target(self, value: Any, name: str) -> Any:
        """Return `value` if its attribute `name` may be set or deleted; raise GuardError if not."""
        if type(name) is not str:
            raise TypeError("attribute name must be a plain string")
        if (type(value), name) in self._settable:
            return value
        name = plain(name)
        if name in words.FRAMES or (is_dunder(name) and name not in words.SETTABLE):
            raise refused(f"setting {name}", "choose another name")
        kind = type(value)
        if issubclass(kind, type):
            own = is_guest_class(value)
        else:
            own = is_guest_class(kind) or self._is_guest_function(value)
            place = f"{_module_of(kind)}.{kind.__name__}"
            own = own or name in STORABLE.get(place, ()) or isinstance(value, OpenNamespace)
        if not own:
            what = f"setting {name} on {kind.__name__}, which is not of this session,"
            raise refused(what, "keep the value in a variable, or subclass it")
        if is_guest_class(kind):
            self._settable.add((kind, name))
        return value

    def attributes_of(self, value: Any) -> Attributes:
        """Return a copy of the attributes of a guest's own object."""
        kind = type(value)
        if self._is_guest_function(value) or isinstance(value, OpenNamespace):
            found = value.__dict__
        elif issubclass(kind, type) and is_guest_class(value):
            found = _dict_of(value)
        elif not issubclass(kind, type) and is_guest_class(kind):
            found = object.__getattribute__(value, "__dict__")
        else:
            raise refused(f"the attributes of a {kind.__name__}", "name the attribute you want")
        return Attributes({n: v for n, v in found.items() if not is_dunder(n) and is_harmless(n)})

    def names_of(self, value: Any) -> list[str]:
        """Return dir(value) without forbidden names."""
        own = is_guest_class(type(value))
        return [
            name
            for name in dir(value)
            if is_harmless(name) and (name in words.READABLE or not name.startswith("_") or own)
        ]

    def _class_of(self, value: Any) -> Any:
        return self.type_of(value)

    def _is_guest_function(self, value: Any) -> bool:
        return type(value) is types.FunctionType and value.__globals__ is self._namespace

    def _check_private(self, value: Any, name: str) -> None:
        """Raise GuardError unless the class that defines a private name is the guest's."""
        kind = type(value)
        if kind is super:
            value = value.__self__
            kind = type(value)
        owner = value if issubclass(kind, type) else kind
        if is_guest_class(owner):
            line = [cls for cls in _mro_of(owner) if not is_guest_class(cls)]
            line += _mro_of(kind) if owner is value else ()  # a metaclass has methods too
            if not any(name in _dict_of(cls) for cls in line):
                if owner is kind:
                    self._known.add((kind, name))
                return
        elif self._is_guest_function(value):
            return
        raise refused(f"the private attribute {name} of {kind.__name__}", "use a public one")

    def _format(self, name: str, value: Any) -> Any:
        """Return str.format in its checked version, or a guest's own method; refuse others."""
        kind = type(value)
        if kind is super:
            raise refused(f"super().{name}", f"write str({name}) of the text itself")
        if issubclass(kind, type):
            if issubclass(value, str) and getattr(value, name) is getattr(str, name):
                return self._formats[name]
        elif issubclass(kind, str) and getattr(kind, name) is getattr(str, name):
            return functools.partial(self._formats[name], value)
        found = getattr(value, name)
        function = getattr(found, "__func__", found)
        if self._is_guest_function(function) or not callable(found):
            return found
        if is_guest_class(kind) and is_guest_class(type(found)):
            return found
        raise refused(f"{kind.__name__}.{name}", "format a plain str")

    def _reader(self, value: Any) -> Any:
        """Return __getattribute__ of object or super() with the checks of `x.name`."""
        if issubclass(type(value), type):
            return self.any
        own = _self_of(value)
        return lambda name: self.any(own, name)

    def _writer(self, method: str, value: Any) -> Any:
        """Return a checked __setattr__ or __delattr__ of object or super()."""
        found = getattr(value, method)
        if issubclass(type(value), type):
            return lambda target, name, *new: found(self.target(target, name), name, *new)
        own = _self_of(value)
        return lambda name, *new: found(name, *new) if self.target(own, name) is own else None

    def any(self, value: Any, name: str) -> Any:
        """Return value.name for a name in a variable: stricter than for a name in the source."""
        if type(name) is str and not name.startswith("_") and is_harmless(name) and name.isascii():
            return getattr(value, name)
        if type(name) is str and plain(name) in words.LOOKED_AT:
            raise refused(f"the attribute {plain(name)} by its name", "write it out")
        return self.get(value, name)


class OpenNamespace(types.SimpleNamespace):
    """types.SimpleNamespace with plain names."""

    def __init__(self, /, **kwargs: Any) -> None:
        for name in kwargs:
            if is_dunder(plain(name)) or plain(name) in words.FRAMES:
                raise refused(f"a namespace with {name}", "choose another name")
        super().__init__(**kwargs)


OpenNamespace.__name__ = OpenNamespace.__qualname__ = "SimpleNamespace"


def _vetted(value: Any, name: str) -> Any:
    if type(value) not in PLAIN and isinstance(value, HIDDEN):
        raise refused(f"the attribute {name}")
    return value


def _self_of(value: Any) -> Any:
    """Return the object that a super() object is bound to."""
    return value.__self__ if type(value) is super else value  # type: ignore[attr-defined]


def _object_of(value: Any) -> Any:
    if isinstance(value, AttributeError):
        raise refused("AttributeError.obj", "name the object itself")
    return value.obj


def _is_array(value: Any) -> bool:
    line = _mro_of(value) if isinstance(value, type) else _mro_of(type(value))
    return any(_module_of(cls).partition(".")[0] in ("numpy", "array") for cls in line) or (
        type(value) is super
    )


def _not_of_arrays(name: str, value: Any) -> Any:
    """Refuse attributes of arrays for files, addresses and flags, and a class's mro."""
    if name == "mro" and isinstance(value, type):
        raise refused("the attribute mro", "use isinstance or issubclass")
    if _is_array(value):
        raise refused(f"the attribute {name} of an array")
    return getattr(value, name)


def _register(value: Any) -> Any:
    """Return a checked ABC.register: a guest must not register classes of libraries."""
    found = getattr(value, "register")  # noqa: B009 - by the name that was asked for
    if not isinstance(value, abc.ABCMeta):
        return found

    def register(cls: Any) -> Any:
        if not isinstance(cls, type) or not is_guest_class(cls):
            raise refused("registering a class that is not of this session", "subclass it")
        return found(cls)

    return register


def _resize(value: Any) -> Any:
    """Return a checked ndarray.resize: never while other objects refer to its memory."""
    found = getattr(value, "resize")  # noqa: B009 - by the name that was asked for
    if not _is_array(value):
        return found
    if isinstance(value, type) or type(value) is super:
        raise refused("ndarray.resize", "call it on the array")
    return lambda *shape: found(*shape, refcheck=True)
