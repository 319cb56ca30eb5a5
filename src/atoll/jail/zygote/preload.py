"""Imports what a zygote is to hold: plain import statements; what is missing is a warning."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType


def load(lines: list[str]) -> tuple[dict[str, ModuleType], list[str]]:
    """Run import statements; the modules by the names they bind, and what could not be had."""
    found: dict[str, ModuleType] = {}
    missing = []
    for line in lines:
        for module, name, bound in _bindings(line):
            try:
                importlib.import_module(module)
                found[name] = sys.modules[bound]
            except Exception as exc:  # noqa: BLE001 - a library may fail in any way as it loads
                missing.append(f"{module}: {type(exc).__name__}: {exc}"[:300])
    _calm()
    _warm_up(found)
    return found, missing


def _bindings(line: str) -> list[tuple[str, str, str]]:
    """Return what a statement imports: each module, a name, and the module bound to that name."""
    statement = ast.parse(line).body[0]
    if isinstance(statement, ast.ImportFrom):
        full = {
            alias.asname or alias.name: f"{statement.module}.{alias.name}"
            for alias in statement.names
        }
        return [(module, name, module) for name, module in full.items()]
    if isinstance(statement, ast.Import):
        return [
            (alias.name, alias.asname, alias.name) if alias.asname else (alias.name, top, top)
            for alias in statement.names
            for top in [alias.name.partition(".")[0]]
        ]
    raise ValueError(f"not an import statement: {line!r}")


def _calm() -> None:
    """A plot needs no window."""
    if "matplotlib" in sys.modules:
        sys.modules["matplotlib"].use("Agg")


def _warm_up(found: dict[str, Any]) -> None:
    """Do once what every guest would do first, so that it finds the caches full."""
    with contextlib.suppress(Exception):
        if "plt" in found:
            figure, axes = found["plt"].subplots()
            axes.plot([1, 2])
            axes.set_title("warm")
            figure.savefig(io.BytesIO())
            found["plt"].close(figure)
            fonts = vars(found["matplotlib"].font_manager)["_get_font"]
            fonts.cache_clear()  # as every fork does, and would copy the pages they are on
    with contextlib.suppress(Exception):
        if "pd" in found:
            frame = found["pd"].DataFrame({"a": [1, 2, 3], "b": list("xyx")})
            frame.groupby("b").a.mean()
            str(frame.groupby("b").a.agg(["mean", "sum"]))
            frame.describe()
            str(frame), frame._repr_html_()
            found["pd"].read_csv(io.StringIO(frame.to_csv()))
