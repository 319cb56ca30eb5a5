"""The built-ins of guest code in the `restricted` backend: harmless ones, and checked versions."""

from __future__ import annotations

import builtins
import sys
from typing import TYPE_CHECKING, Any

from atoll.backends.restricted import rewrite
from atoll.backends.restricted.access import Attributes
from atoll.backends.restricted.refusal import GuardError, refused
from atoll.sandbox.guard.visitor import is_dunder
from atoll.sandbox.guard.words import names_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.backends.restricted.access import Access
    from atoll.backends.restricted.library import Library
    from atoll.backends.restricted.standins import StandIns

HARMLESS = names_in("""
    abs aiter all anext any ascii bin bool bytearray bytes callable chr classmethod complex dict
    divmod enumerate filter float format frozenset hash hex id int isinstance issubclass iter len
    list map max memoryview min next object oct ord pow print property range repr reversed round
    set slice sorted staticmethod str sum super tuple zip NotImplemented Ellipsis __debug__
""")
BEHIND_THE_SCENES = ("numpy", "_strptime")
"""Modules that C code may import while guest code runs; guest code does not get them."""
_MISSING = object()


def build(
    namespace: dict[str, Any], access: Access, standins: StandIns, library: Library
) -> dict[str, Any]:
    """Return the built-ins of guest code."""
    found = {name: getattr(builtins, name) for name in HARMLESS}
    found |= {name: kind for name, kind in vars(builtins).items() if _is_exception(kind)}
    found |= _checked(namespace, access)
    return found | {
        "type": standins.type,
        "GuardError": GuardError,
        "__build_class__": standins.build,
        "__import__": import_for_c,
        rewrite.GET: access.get,
        rewrite.TARGET: access.target,
        rewrite.LOAD: library.load,
        rewrite.TAKE: library.take,
    }


def _checked(namespace: dict[str, Any], access: Access) -> dict[str, Callable[..., Any]]:
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
        names = {n: v for n, v in namespace.items() if not is_dunder(n)}
        return Attributes(names)

    def dir_(*values: Any) -> list[str]:
        return access.names_of(values[0]) if values else sorted(globals_())

    return {
        "getattr": getattr_,
        "hasattr": hasattr_,
        "setattr": lambda v, name, new, /: setattr(access.target(v, name), name, new),
        "delattr": lambda v, name, /: delattr(access.target(v, name), name),
        "vars": lambda *v: access.attributes_of(v[0]) if v else globals_(),
        "globals": globals_,
        "dir": dir_,
        "exit": _exit,
        "quit": _exit,
    }


def _is_exception(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def import_for_c(name: str, *_rest: Any) -> None:
    """Serve imports of C code, which takes the module from sys.modules itself."""
    if name in sys.modules:
        return
    if name.partition(".")[0] not in BEHIND_THE_SCENES:
        raise refused(f"the module {name}")
    builtins.__import__(name)


def _exit(code: Any = None, /) -> None:
    raise SystemExit(code)
