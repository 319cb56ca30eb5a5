"""The standard library inside the component: compiled, compressed, with its own importer."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import marshal
import os
import sys
import zlib

PRELOADED = """
    ast asyncio base64 bisect calendar collections contextlib copy csv dataclasses datetime decimal
    enum fractions functools hashlib heapq html inspect io itertools json linecache logging math
    operator pathlib pickle random re secrets shutil sqlite3 statistics string tempfile textwrap
    threading time traceback types typing unicodedata urllib.parse uuid warnings weakref zoneinfo
"""
LEFT_OUT = """
    __pycache__ curses ensurepip idlelib lib-dynload lib2to3 pydoc_data site-packages test
    tests tkinter turtle.py turtledemo venv
"""
_packed: dict[str, tuple[bool, bytes]] = {}


class PackedFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules from the dict."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, ARG002
        """Return the spec of a module in the dict, or None."""
        if name not in _packed:
            return None
        origin = f"<library>/{name}"
        package = _packed[name][0]
        return importlib.machinery.ModuleSpec(name, self, origin=origin, is_package=package)

    def exec_module(self, module):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
        """Run a module's code."""
        code = marshal.loads(zlib.decompress(_packed[module.__spec__.name][1]))  # noqa: S302
        exec(code, vars(module))  # noqa: S102


def pack() -> None:
    """Pack every module of the build's Python, and import them from the dict from now on."""
    for root in [path for path in sys.path if os.path.exists(os.path.join(path, "os.py"))]:
        _pack_tree(root, "")
    for root in [path for path in sys.path if os.path.isdir(os.path.join(path, "cloudpickle"))]:
        _pack_tree(root, "cloudpickle/")
    sys.meta_path.insert(2, PackedFinder())  # after built-in and frozen modules


def preload() -> None:
    """Import the modules that cells use most, so that they load at once."""
    for name in PRELOADED.split():
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # this Python has none


def _pack_tree(root: str, prefix: str) -> None:
    for entry in sorted(os.listdir(os.path.join(root, prefix))):
        path = f"{prefix}{entry}"
        if entry in LEFT_OUT.split():
            continue
        if entry.endswith(".py"):
            _pack_file(root, path)
        elif os.path.isdir(os.path.join(root, path)):
            _pack_tree(root, f"{path}/")


def _pack_file(root: str, path: str) -> None:
    name = path.removesuffix(".py").replace("/", ".")
    package = name.endswith(".__init__")
    name = name.removesuffix(".__init__")
    if name in _packed or name == "__init__":
        return
    try:
        with open(os.path.join(root, path), "rb") as file:
            code = compile(file.read(), f"<library>/{path}", "exec", dont_inherit=True, optimize=1)
    except (SyntaxError, ValueError):
        return
    _packed[name] = (package, zlib.compress(marshal.dumps(code), 6))
