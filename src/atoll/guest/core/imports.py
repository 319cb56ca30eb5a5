"""Changes modules, or makes missing ones, when guest code imports them: a start does not pay."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..shared.messages import Names

    Change = Callable[[Any], None]


def when_loaded(name: str, change: Change) -> None:
    """Call `change(module)` once: now if the module is loaded, else right after its import."""
    module = sys.modules.get(name)
    if module is not None:
        change(module)
        return
    finder = next((known for known in sys.meta_path if type(known) is ChangingFinder), None)
    if finder is None:
        finder = ChangingFinder()
        sys.meta_path.insert(0, finder)
    finder.changes[name] = change


class ChangingFinder:
    """A finder that changes what the other finders find; it leaves when nothing is to change."""

    def __init__(self) -> None:
        self.changes: dict[str, Change] = {}
        self._asking: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module to change as the other finders know it; None for others."""
        if name not in self.changes or name in self._asking:
            return None
        import _frozen_importlib

        self._asking.add(name)
        try:
            spec = vars(_frozen_importlib)["_find_spec"](name, path, target)
        finally:
            self._asking.discard(name)
        if spec is not None:
            self._change_after(spec.loader, name)
        return spec

    def _change_after(self, loader: Any, name: str) -> None:
        """Let the loader change the module that it loads next."""
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            vars(loader).pop("exec_module", None)
            load(module)
            change = self.changes.pop(name, None)
            if not self.changes:
                sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            if change is not None:
                change(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            pass  # not a loader of files: the module stays as it is


class StandInFinder:
    """A finder, asked after all others, that makes the modules of a package that is missing."""

    def __init__(self, modules: dict[str, bool], contents: Callable[[str], Names]) -> None:
        """`modules`: by name, whether it is a package. `contents` returns what a module holds."""
        self._modules, self._contents = modules, contents

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> Any:
        """Return the spec of a module to make; None if the package is not the stand-in."""
        if name not in self._modules or path:  # a real package has folders
            return None
        import _frozen_importlib

        is_package = self._modules[name]
        return _frozen_importlib.ModuleSpec(name, self, is_package=is_package)  # type: ignore[arg-type]

    def create_module(self, _spec: Any) -> None:
        """Have the import system make the module."""

    def exec_module(self, module: Any) -> None:
        """Fill a module that was made."""
        vars(module).update(self._contents(module.__name__))
