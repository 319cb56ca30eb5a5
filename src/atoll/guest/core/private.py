"""Gives the runtime built-in functions and standard modules of its own.

Guest code shares the interpreter with the runtime, and may replace or delete any built-in function
and any attribute of a module: `builtins.len = None`, `del os.write`. So each module of the runtime
gets the built-in functions as globals, which Python looks up first, and copies of the modules that
it imports when it is loaded. An import within a function gets the module that guest code sees.

What guest code does to the runtime's own objects, which it can find as well, ends the session.
"""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Iterable

LEAST_RECURSION = 200
"""What the runtime needs to run a cell and to print a traceback."""
SHARED = ("builtins", "sys")
"""Modules that the runtime changes for guest code, and reads what guest code has set."""
_MODULE = type(sys)
_RUNTIME = (__package__ or "").rpartition(".")[0]
_BUILT_IN = {
    name: value
    for name, value in vars(builtins).items()
    if not name.startswith("_") or name == "__import__"
}
_modules = sys.modules
_get_recursion_limit, _set_recursion_limit = sys.getrecursionlimit, sys.setrecursionlimit
_copies: dict[int, ModuleType] = {}
"""By the id of the module, which its copy keeps alive."""


def adopt(modules: Iterable[Any]) -> None:
    """Make modules of the runtime independent of what guest code changes; others are left alone."""
    for module in modules:
        names = module.__dict__ if type(module) is _MODULE else {}
        if not is_runtime(names.get("__package__")) or "__adopted__" in names:
            continue
        for name, value in list(names.items()):
            if type(value) is _MODULE and value.__name__.partition(".")[0] not in SHARED:
                names[name] = _copy(value)
        for name, value in _BUILT_IN.items():
            names.setdefault(name, value)
        names["__adopted__"] = True


def _copy(module: ModuleType) -> ModuleType:
    """Return the copy of a module; a module of the runtime itself is not copied."""
    if is_runtime(module.__dict__.get("__package__")):
        return module
    key = id(module)
    if key not in _copies:
        _copies[key] = made = _MODULE(module.__name__)
        made.__dict__.update(module.__dict__, __copied__=module)
    return _copies[key]


def copies_of(module: ModuleType) -> list[ModuleType]:
    """Return the copy of a module that the runtime uses, if there is one."""
    return [_copies[id(module)]] if id(module) in _copies else []


def is_runtime(package: Any) -> bool:
    """Return whether a package is the runtime, or one inside it."""
    return type(package) is str and (package == _RUNTIME or package.startswith(_RUNTIME + "."))


def import_shown(name: str) -> Any:
    """Import a module that guest code sees and may have replaced; None if it raises anything."""
    try:
        return _BUILT_IN["__import__"](name)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def renew_interpreter() -> None:
    """Put right, for the next cell, what neither the runtime nor an import can do without."""
    sys.modules = _modules
    if _get_recursion_limit() < LEAST_RECURSION:
        _set_recursion_limit(LEAST_RECURSION)
