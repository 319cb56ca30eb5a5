"""Modules that guest code finds among its globals without an import.

They are not variables of the session: a saved state has their names only. Where a restored session
lacks some of them, they are imported when they are first used.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable

    from ..shared.messages import Json, Names

_MODULE = type(sys)


class Preloaded:
    """The preloaded modules of a namespace, by the names that they are bound to."""

    def __init__(self, namespace: Names) -> None:
        self._namespace = namespace
        self._modules: Names = {}
        self._names: dict[str, str] = {}

    def bind(self, modules: Names) -> None:
        """Bind modules in the namespace."""
        self._namespace.update(modules)
        self._modules.update(modules)
        self._names.update((alias, vars(module)["__name__"]) for alias, module in modules.items())

    def holds(self, alias: str) -> bool:
        """Return whether the name still has its preloaded module."""
        module = self._modules.get(alias)
        if module is None or alias not in self._namespace:
            return False
        value = self._namespace[alias]
        if type(module) is LateModule and value is sys.modules.get(self._names[alias], module):
            return True  # it was used, and so imported
        return value is module

    def own(self) -> Names:
        """Return a copy of the namespace without preloaded modules.

        Threads of the guest may change it meanwhile, and not every key has to be a str.
        """
        result = list(self._namespace.items())
        return {name: v for name, v in result if type(name) is str and not self.holds(name)}

    def make_way(self, names: Iterable[str]) -> None:
        """Unbind modules that would hide what the host offers under these names."""
        for name in self._modules.keys() & set(names):
            if self.holds(name):
                del self._namespace[name]
            del self._modules[name], self._names[name]

    def facts(self) -> Json:
        """Return what a state says of them: modules by their names, and the names deleted."""
        kept = {alias: name for alias, name in self._names.items() if self.holds(alias)}
        deleted = [alias for alias in self._names if alias not in self._namespace]
        return {"preloaded": kept, "deleted": deleted}

    def restore(self, facts: Json, offered: Iterable[str]) -> None:
        """Bind what a state's session had preloaded, and unbind what it had deleted."""
        for alias in facts.get("deleted", ()):
            if self.holds(alias):
                del self._namespace[alias]
        for alias, name in facts.get("preloaded", {}).items():
            known = self.holds(alias) and self._names[alias] == name
            if not known and alias not in offered:
                self._modules[alias] = self._namespace[alias] = self._found(alias, name)
                self._names[alias] = name

    def _found(self, alias: str, name: str) -> Any:
        module = sys.modules.get(name)
        return LateModule(name, alias, self._namespace) if module is None else module


class LateModule(_MODULE):  # type: ignore[valid-type,misc]
    """Stands for a module until it is used: then it is imported and takes this one's place."""

    def __init__(self, name: str, alias: str, namespace: Names) -> None:
        super().__init__(name)
        _own(self).update(place=(alias, namespace))

    def __getattribute__(self, name: str) -> Any:
        return getattr(_imported(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_imported(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_imported(self), name)

    def __dir__(self) -> list[str]:
        return dir(_imported(self))

    def __repr__(self) -> str:
        return repr(_imported(self))


def name_of(module: Any) -> str:
    """Return the name that a late module is imported by."""
    name: str = _own(module)["__name__"]
    return name


def _own(module: Any) -> Names:
    result: Names = _MODULE.__getattribute__(module, "__dict__")
    return result


def _imported(late: Any) -> Any:
    name = name_of(late)
    __import__(name)
    module = sys.modules[name]
    alias, namespace = _own(late)["place"]
    if namespace.get(alias) is late:
        namespace[alias] = module
    return module
