"""Checked access of guest code to attributes: reading and writing them, also in format strings.

SECURITY: this is the backend's innermost check. An attribute is refused unless it clearly belongs
to the guest or is clearly harmless. Checks use type(x), never what an object says about itself.
"""

from __future__ import annotations

import abc
import functools
import io
import string
import types
from _string import formatter_field_name_split  # type: ignore[import-not-found]
from typing import TYPE_CHECKING, Any

from atoll.sandbox.guard import words
from atoll.sandbox.guard.visitor import is_dunder, is_harmless, plain
from atoll.text.tables import names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from atoll.guest.shared.messages import Names


ADVICE = 'use a jailed backend for that: create_sandbox(backend="native")'


class GuardError(PermissionError):
    """The `restricted` backend refuses an operation."""

    __module__ = "builtins"  # as guest code sees it


def refused(what: str, advice: str = ADVICE) -> GuardError:
    """Return the error for `what`."""
    return GuardError(f"{what} is not available in the backend restricted; {advice}")


GUEST = "__main__"
PRIVATE = names_in("""
    _asdict _replace _fields _make _field_defaults _value_ _name_ _missing_ _generate_next_value_
    _ignore_ _order_ _member_names_ _repr_html_ _repr_markdown_ _repr_latex_ _repr_svg_ _repr_png_
    _repr_json_
""")
"""Names with an underscore that are public API of libraries."""
OF_ARRAYS = names_in("tofile dump dumps ctypes cffi capsule setflags baseclass")
"""Attributes of arrays that lead to files, addresses, flags and classes of arrays."""
STORABLE = {
    "decimal.Context": names_in("prec rounding Emin Emax capitals clamp"),
    "textwrap.TextWrapper": names_in(
        "width initial_indent subsequent_indent expand_tabs replace_whitespace break_long_words "
        "fix_sentence_endings drop_whitespace break_on_hyphens tabsize max_lines placeholder"
    ),
    "numpy.ndarray": names_in("shape real imag flat"),
    "numpy.flagsobj": names_in("writeable"),
    "numpy.matrix": names_in("shape real imag flat"),
    "numpy.ma.MaskedArray": names_in("shape mask fill_value real imag flat"),
    "csv.DictReader": names_in("fieldnames"),
}
"""Attributes that may be set on instances of library classes."""
_FILES = (io.FileIO, io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom)
_HIDDEN = (types.ModuleType, types.FrameType, types.CodeType, *_FILES)
"""Types whose instances guest code never gets."""
_PLAIN = frozenset({int, str, float, bool, list, dict, tuple, set, types.MethodType, type(None)})
_module_of = type.__dict__["__module__"].__get__
_mro_of = type.__dict__["__mro__"].__get__
_dict_of = type.__dict__["__dict__"].__get__


def is_guest_class(cls: type) -> bool:
    """Return whether guest code made the class: only those have the module `__main__`."""
    return _module_of(cls) == GUEST  # type: ignore[no-any-return]


class Attributes(dict[str, object]):
    """A copy of an object's attributes; to change one, set it on the object."""

    def _refuse(self, *_args: Any, **_kwargs: Any) -> Any:
        raise refused("changing __dict__ directly", "set the attribute itself: x.name = value")

    __setitem__ = __delitem__ = update = pop = popitem = setdefault = clear = __ior__ = _refuse


class OpenNamespace(types.SimpleNamespace):
    """types.SimpleNamespace with plain names."""

    def __init__(self, /, **kwargs: Any) -> None:
        for name in kwargs:
            if is_dunder(plain(name)) or plain(name) in words.FRAMES:
                raise refused(f"a namespace with {name}", "choose another name")
        super().__init__(**kwargs)


OpenNamespace.__name__ = OpenNamespace.__qualname__ = "SimpleNamespace"


class Access:
    """The checks, for one guest's namespace."""

    def __init__(self, namespace: Names) -> None:
        self._namespace = namespace
        self._known: set[tuple[type, str]] = set()
        self._settable: set[tuple[type, str]] = set()
        self._formatter = _Formatter(self.any)
        self.type_of: Callable[[Any], Any] = type
        """type(x) for guest code."""
        self._special: dict[str, Callable[[Any], Any]] = {
            "__class__": lambda value: self.type_of(value),  # noqa: PLW0108 - it is set later
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
            "mro": _mro,
            "resize": _resize,
            "register": _register,
            **{name: functools.partial(_of_array, name) for name in OF_ARRAYS},
        }

    def get(self, value: Any, name: str) -> Any:
        """Return value.name, for a name that is not clearly harmless."""
        if type(name) is not str:  # a subclass of str may override comparisons
            raise TypeError("attribute name must be a plain string")
        if (type(value), name) in self._known:
            return _vetted(getattr(value, name), name)
        name = plain(name)
        if special := self._special.get(name):
            return _vetted(special(value), name)
        if name in words.FRAMES:
            raise refused(f"the attribute {name}")
        if is_dunder(name):
            if name not in words.READABLE | words.LOOKED_AT:
                raise refused(f"the attribute {name}")
        elif name.startswith("_") and name not in PRIVATE:
            self._check_private(value, name)
        return _vetted(getattr(value, name), name)

    def any(self, value: Any, name: str) -> Any:
        """Return value.name for a name in a variable: stricter than for a name in the source."""
        if type(name) is str and not name.startswith("_") and is_harmless(name) and name.isascii():
            return getattr(value, name)
        if type(name) is str and plain(name) in words.LOOKED_AT:
            raise refused(f"the attribute {plain(name)} by its name", "write it out")
        return self.get(value, name)

    def target(self, value: Any, name: str) -> Any:
        """Return `value` if its attribute `name` may be set or deleted; raise GuardError if not."""
        if type(name) is not str:
            raise TypeError("attribute name must be a plain string")
        if (type(value), name) in self._settable:
            return value
        name, kind = plain(name), type(value)
        if name in words.FRAMES or (is_dunder(name) and name not in words.SETTABLE):
            raise refused(f"setting {name}", "choose another name")
        if self._is_guests(value) or isinstance(value, OpenNamespace):
            if is_guest_class(kind):
                self._settable.add((kind, name))
            return value
        if issubclass(kind, type) or name not in STORABLE.get(
            f"{_module_of(kind)}.{kind.__name__}", ()
        ):
            what = f"setting {name} on {kind.__name__}, which is not of this session,"
            raise refused(what, "keep the value in a variable, or subclass it")
        return value

    def attributes_of(self, value: Any) -> Attributes:
        """Return a copy of the attributes of a guest's own object."""
        kind = type(value)
        if not self._is_guests(value) and not isinstance(value, OpenNamespace):
            raise refused(f"the attributes of a {kind.__name__}", "name the attribute you want")
        is_class = issubclass(kind, type)
        own = _dict_of(value) if is_class else object.__getattribute__(value, "__dict__")
        return Attributes({n: v for n, v in own.items() if not is_dunder(n) and is_harmless(n)})

    def names_of(self, value: Any) -> list[str]:
        """Return dir(value) without forbidden names."""
        own = is_guest_class(type(value))
        return [
            name
            for name in dir(value)
            if is_harmless(name) and (name in words.READABLE or not name.startswith("_") or own)
        ]

    def _is_guests(self, value: Any) -> bool:
        """Return whether a value is a class, an instance or a function that guest code made."""
        kind = type(value)
        if issubclass(kind, type):
            return is_guest_class(value)
        return is_guest_class(kind) or self._is_guest_function(value)

    def _is_guest_function(self, value: Any) -> bool:
        return type(value) is types.FunctionType and value.__globals__ is self._namespace

    def _check_private(self, value: Any, name: str) -> None:
        """Raise GuardError unless the class that defines a private name is the guest's."""
        value = _self_of(value)
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
        is_class = issubclass(kind, type)
        owner = value if is_class else kind
        if issubclass(owner, str) and getattr(owner, name) is getattr(str, name):
            checked = getattr(self._formatter, f"{name}_text")
            return checked if is_class else functools.partial(checked, value)
        result = getattr(value, name)
        function = getattr(result, "__func__", result)
        if self._is_guest_function(function) or not callable(result):
            return result
        if is_guest_class(kind) and is_guest_class(type(result)):
            return result
        raise refused(f"{kind.__name__}.{name}", "format a plain str")

    def _reader(self, value: Any) -> Any:
        """Return __getattribute__ of object or super() with the checks of `x.name`."""
        if issubclass(type(value), type):
            return self.any
        own = _self_of(value)
        return lambda name: self.any(own, name)

    def _writer(self, method: str, value: Any) -> Any:
        """Return a checked __setattr__ or __delattr__ of object or super()."""
        write = getattr(value, method)
        if issubclass(type(value), type):
            return lambda target, name, *new: write(self.target(target, name), name, *new)
        own = _self_of(value)
        return lambda name, *new: write(name, *new) if self.target(own, name) is own else None


class _Formatter(string.Formatter):
    """str.format and str.format_map whose fields read attributes with `get`."""

    def __init__(self, get: Callable[[Any, str], Any]) -> None:
        self._get = get

    def format_text(self, text: str, /, *args: Any, **kwargs: Any) -> str:
        """Return text.format(*args, **kwargs)."""
        text = str.__str__(text)  # the content of a subclass of str, without its methods
        if "." not in text:  # no field reads an attribute
            return text.format(*args, **kwargs)
        return self.vformat(text, args, kwargs)

    def format_map_text(self, text: str, mapping: Mapping[str, Any], /) -> str:
        """Return text.format_map(mapping)."""
        text = str.__str__(text)
        return text.format_map(mapping) if "." not in text else self.vformat(text, (), mapping)

    def get_field(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        first, rest = formatter_field_name_split(name)
        value = self.get_value(first, args, kwargs)
        for is_attribute, key in rest:
            value = self._get(value, key) if is_attribute else value[key]
        return value, first


def _vetted(value: Any, name: str) -> Any:
    if type(value) not in _PLAIN and isinstance(value, _HIDDEN):
        raise refused(f"the attribute {name}")
    return value


def _self_of(value: Any) -> Any:
    """Return the object that a super() object is bound to."""
    return value.__self__ if type(value) is super else value  # type: ignore[attr-defined]


def _object_of(value: Any) -> Any:
    if isinstance(value, AttributeError):
        raise refused("AttributeError.obj", "name the object itself")
    return value.obj


def _mro(value: Any) -> Any:
    if isinstance(value, type):
        raise refused("the attribute mro", "use isinstance or issubclass")
    return _of_array("mro", value)


def _is_array(value: Any) -> bool:
    line = _mro_of(value) if isinstance(value, type) else _mro_of(type(value))
    return type(value) is super or any(
        _module_of(cls).partition(".")[0] in ("numpy", "array") for cls in line
    )


def _of_array(name: str, value: Any) -> Any:
    if _is_array(value):
        raise refused(f"the attribute {name} of an array")
    return getattr(value, name)


def _resize(value: Any) -> Any:
    """Return a checked ndarray.resize: never while other objects refer to its memory."""
    resize = value.resize
    if not _is_array(value):
        return resize
    if isinstance(value, type) or type(value) is super:
        raise refused("ndarray.resize", "call it on the array")
    return lambda *shape: resize(*shape, refcheck=True)


def _register(value: Any) -> Any:
    """Return a checked ABC.register: a guest must not register classes of libraries."""
    register = value.register
    if not isinstance(value, abc.ABCMeta):
        return register

    def checked(cls: Any) -> Any:
        if not isinstance(cls, type) or not is_guest_class(cls):
            raise refused("registering a class that is not of this session", "subclass it")
        return register(cls)

    return checked
