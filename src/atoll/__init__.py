"""Atoll runs Python that agents write: isolated, fast, with state that is kept.

    import atoll

    with atoll.create_sandbox(context=text) as box:
        result = box.execute("print(len(context))")

Importing this package loads nothing: each name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module

# Without importing typing: a Ctrl-C while the command line starts falls into fewer imports.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"


_HOMES: dict[str, str] = {}


def _homes() -> dict[str, str]:
    """Return the module of each public name: the stub's imports, which type checkers read too."""
    if not _HOMES:
        with open(f"{__path__[0]}/__init__.pyi", encoding="utf-8") as stub:
            imports = [line.split() for line in stub if line.startswith("from ")]
        _HOMES.update((name, module) for _, module, _, name, *_ in imports)
    return _HOMES


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    homes = _homes()
    if name == "__all__":
        value: Any = ["__version__", *homes]
    elif name not in homes:
        text = f"module 'atoll' has no attribute {name!r}{_hint(name)}"
        raise AttributeError(text, name=name, obj=None)  # with an object, Python adds a second hint
    elif homes[name] == "atoll":
        return import_module(f"atoll.{name}")
    else:
        value = getattr(import_module(homes[name]), name)
    globals()[name] = value
    return value


def _hint(name: str) -> str:
    """Return what to use instead of a name that there is not."""
    if name.startswith("_"):
        return ""
    if name in ("run", "exec", "eval", "execute", "run_code"):
        return ": open a sandbox, `with atoll.create_sandbox() as box: box.execute(code)`"
    closest: str = import_module("atoll.text.name_hints").closest(name, _homes())
    return closest


def __dir__() -> list[str]:
    return sorted(["__version__", *_homes()])
