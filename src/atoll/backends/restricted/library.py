"""The modules that guest code gets: new objects with only the offered names.

Attributes that are modules are left out, such as `random._os`, `json.codecs`, `queue.threading`.
Guest code that changes a module changes only its own copy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NoReturn

from atoll.backends.restricted.refusal import ADVICE, refused
from atoll.sandbox.guard.offered import FOLDERS, MODULES, Offer

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Mapping

    Made = Mapping[str, Mapping[str, Any]]


class OfferedModule:
    """A module's offered names."""

    def __getattr__(self, name: str) -> NoReturn:
        shown = self.__dict__.get("__name__", "?")
        raise AttributeError(f"the backend restricted offers no {shown}.{name}; {ADVICE}")

    def __repr__(self) -> str:
        return f"<module {self.__dict__.get('__name__', '?')!r}, as offered>"


class Library:
    """The offered modules, each created on first use."""

    def __init__(self, made: Made, trusted: Callable[[], Any], shown: Callable[[Any], Any]) -> None:
        self._made, self._trusted, self._shown = made, trusted, shown
        self._modules: dict[str, OfferedModule] = {}

    def load(self, wanted: str) -> OfferedModule:
        """Return what an import statement binds: the module, or with a final colon its root."""
        name = wanted.removesuffix(":")
        first, _, rest = name.partition(".")
        found, outer = self._module(name), self._module(first)
        if rest:
            outer.__dict__[rest] = found
        return found if name == wanted else outer

    def take(self, module: str, name: str) -> Any:
        """Return what `from module import name` binds."""
        inner = f"{module}.{name}"
        if inner in MODULES:
            return self._module(inner)
        found = self._module(module)
        try:
            return getattr(found, name)
        except AttributeError as exc:
            raise ImportError(str(exc)) from None

    def _module(self, name: str) -> OfferedModule:
        if name not in self._modules:
            if name not in MODULES and name != "urllib":
                raise refused(f"the module {name}")
            with self._trusted():
                self._modules[name] = self._offer(name)
        return self._modules[name]

    def _offer(self, name: str) -> OfferedModule:
        offer = MODULES.get(name, Offer(only=frozenset()))
        module = importlib.import_module(name)
        made = object.__new__(OfferedModule)
        space = made.__dict__
        space["__name__"], space["__doc__"] = name, module.__doc__
        if "__version__" in vars(module):
            space["__version__"] = module.__version__
        public = _public(module, offer)
        space.update((one, self._shown(value)) for one, value in public.items())
        for one in offer.made:
            space[one] = self._made[name][one]
        for inner in FOLDERS.get(name, ()):
            space[inner.rpartition(".")[2]] = self._module(inner)
        return made


def _public(module: types.ModuleType, offer: Offer) -> dict[str, Any]:
    """Return the offered names with their values; one that is left out is never looked up.

    numpy would import `numpy.testing` for that, and with it libraries that evaluate annotations.
    """
    names = (offer.only if offer.only is not None else _names(module)) - offer.not_ - offer.made
    found = {name: getattr(module, name) for name in names if hasattr(module, name)}
    return {
        name: value
        for name, value in found.items()
        if not name.startswith("_") and type(value) is not type(module)
    }


def _names(module: types.ModuleType) -> frozenset[str]:
    return frozenset(getattr(module, "__all__", None) or dir(module))
