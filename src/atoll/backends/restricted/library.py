"""The modules that guest code gets: new objects with only the offered names.

Attributes that are modules are left out, such as `random._os`, `json.codecs`, `queue.threading`.
Guest code that changes a module changes only its own copy.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from atoll.backends.restricted.access import ADVICE, refused
from atoll.sandbox.guard.offered import FOLDERS, MODULES, Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Made = Mapping[str, Mapping[str, Any]]


class Offered:
    """The offered names of a module or a stream."""

    def __getattr__(self, name: str) -> NoReturn:
        shown = self.__dict__.get("__name__", "?")
        raise AttributeError(f"the backend restricted offers no {shown}.{name}; {ADVICE}")

    def __repr__(self) -> str:
        return f"<{self.__dict__.get('__name__', '?')!r}, as offered>"


class OfferedInput(Offered):
    """sys.stdin, whose lines can be read in a loop."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__["readline"], "")


class Library:
    """The offered modules, each created on first use."""

    def __init__(self, made: Made, trusted: Callable[[], Any], shown: Callable[[Any], Any]) -> None:
        self._made, self._trusted, self._shown = made, trusted, shown
        self._modules: dict[str, Offered] = {}

    def load(self, wanted: str) -> Offered:
        """Return what an import statement binds: the module, or with a final colon its root."""
        name = wanted.removesuffix(":")
        first, _, rest = name.partition(".")
        module, outer = self._module(name), self._module(first)
        if rest:
            outer.__dict__[rest] = module
        return module if name == wanted else outer

    def take(self, module: str, name: str) -> Any:
        """Return what `from module import name` binds."""
        inner = f"{module}.{name}"
        if inner in MODULES:
            return self._module(inner)
        try:
            return getattr(self._module(module), name)
        except AttributeError as exc:
            raise ImportError(str(exc)) from None

    def _module(self, name: str) -> Offered:
        if name not in self._modules:
            if name not in MODULES and name != "urllib":
                raise refused(f"the module {name}")
            with self._trusted():
                self._modules[name] = self._offer(name)
        return self._modules[name]

    def _offer(self, name: str) -> Offered:
        """Return a module's offered names; a name that is left out is never looked up.

        numpy would import `numpy.testing` for that, and with it libraries that evaluate
        annotations.
        """
        offer = MODULES.get(name, Offer(only=frozenset()))
        module = importlib.import_module(name)
        made = offered(name, Offered)
        space = made.__dict__
        space["__doc__"] = module.__doc__
        if "__version__" in vars(module):
            space["__version__"] = module.__version__
        wanted = offer.only
        if wanted is None:
            wanted = frozenset(getattr(module, "__all__", None) or dir(module))
        for public in wanted - offer.not_ - offer.made:
            if not public.startswith("_") and hasattr(module, public):
                value = getattr(module, public)
                if type(value) is not type(module):
                    space[public] = self._shown(value)
        space.update((own, self._made[name][own]) for own in offer.made)
        for inner in FOLDERS.get(name, ()):
            space[inner.rpartition(".")[2]] = self._module(inner)
        return made


def offered(name: str, kind: type[Offered], **contents: Any) -> Offered:
    """Return an object that has these names alone."""
    made = object.__new__(kind)
    made.__dict__.update(contents, __name__=name)
    return made


def output(name: str) -> Offered:
    """Return sys.stdout or sys.stderr for guest code, without access to the file behind it."""

    def write_bytes(data: Any) -> int:
        stream, whole = getattr(sys, name), bytes(data)
        stream.flush()
        stream.buffer.write(whole)
        return len(whole)

    flush = _method(name, "flush")
    return offered(
        f"sys.{name}",
        Offered,
        **{method: _method(name, method) for method in ("write", "writelines")},
        **_STREAM,
        flush=flush,
        writable=lambda: True,
        readable=lambda: False,
        errors="backslashreplace",
        buffer=offered(f"sys.{name}.buffer", Offered, write=write_bytes, flush=flush),
    )


def standard_input() -> Offered:
    """Return sys.stdin for guest code."""
    methods = {name: _method("stdin", name) for name in ("read", "readline", "readlines")}
    return offered("sys.stdin", OfferedInput, **methods, **_STREAM, readable=lambda: True)


_STREAM: Mapping[str, Any] = {"isatty": lambda: False, "closed": False, "encoding": "utf-8"}


def _method(stream: str, name: str) -> Callable[..., Any]:
    """Return a method of the present stream: cells may redirect it."""
    return lambda *args: getattr(getattr(sys, stream), name)(*args)  # noqa: PLW0108 - it changes
