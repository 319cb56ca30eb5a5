"""Packages that guest code neither sees nor can stand in for: the runtime itself, cloudpickle."""

from __future__ import annotations

import sys

from . import private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..shared.messages import Names


class HiddenPackage:
    """Modules of one package, among `sys.modules` only within a `with` block.

    So parts of it can be imported when they are needed: a guest's start counts milliseconds.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._ours: Names = {}
        self._theirs: Names = {}

    def hide(self) -> None:
        """Hide the package's modules that are loaded now."""
        self._ours = self._take()

    def __enter__(self) -> None:
        self._theirs = self._take()
        sys.modules.update(self._ours)

    def __exit__(self, *_exc: object) -> None:
        self._ours = self._take()
        sys.modules.update(self._theirs)

    def _take(self) -> Names:
        known = [name for name in list(sys.modules) if type(name) is str]
        names = [name for name in known if name.split(".")[0] == self._name]
        taken = {name: sys.modules.pop(name) for name in names}
        private.adopt(taken.values())
        return taken
