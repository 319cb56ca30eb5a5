"""All modules of the runtime in one file of compiled code, so that a guest starts by one read.

The host writes it beside the compiled modules. A guest without it imports them one by one.
"""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PACKAGE = "guest"


class Bundle:
    """Imports modules of the runtime from their compiled code."""

    def __init__(self, codes: dict[str, bytes], folder: str) -> None:
        self._codes, self._folder = codes, folder

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """Return the spec of a module that is in the bundle, for the import system."""
        if name not in self._codes:
            return None
        make = sys.modules["_frozen_importlib"].ModuleSpec
        spec = make(name, self, origin=self._folder, is_package=name == PACKAGE)
        if name == PACKAGE:
            spec.submodule_search_locations = [self._folder]  # modules that few guests need
        return spec

    def create_module(self, _spec: Any) -> None:
        """Let the import system make an ordinary module."""

    def exec_module(self, module: Any) -> None:
        """Run the module's code, which may ask where its source lies."""
        name = module.__name__[len(PACKAGE) + 1 :] or "__init__"
        module.__file__ = "{}/{}.py".format(self._folder, name)
        exec(marshal.loads(self._codes[module.__name__]), vars(module))  # noqa: S302 - our own


def start(codes: dict[str, bytes], root: str, folder: str, entry: str = "__main__") -> None:
    """Run a guest in the working folder `folder`; the runtime lies in `root`.

    `entry` is the module whose `main` is called.
    """
    finder = Bundle(codes, root + "/" + PACKAGE)
    sys.meta_path.insert(0, finder)
    main = __import__(PACKAGE + "." + entry, None, None, ("main",)).main
    sys.meta_path.remove(finder)
    main(folder)


def write(folder: str) -> None:
    """Write the bundle of the modules in `folder` for this interpreter, unless it is up to date.

    Do nothing where the folder cannot be written to.
    """
    names = sorted(name for name in os.listdir(folder) if name.endswith(".py"))
    facts = [os.stat(os.path.join(folder, name)) for name in names]
    key = repr([(name, one.st_mtime_ns, one.st_size) for name, one in zip(names, facts)])
    target = path(folder)
    try:
        with open(target, "rb") as file:
            if marshal.load(file) == key:  # noqa: S302 - our own
                return
    except (OSError, ValueError, EOFError, TypeError):
        pass
    codes = {_module(name): _compile(folder, name) for name in names}
    temporary = "{}.{}".format(target, os.getpid())
    try:
        with open(temporary, "wb") as file:
            file.write(marshal.dumps(key) + marshal.dumps(codes))
        os.replace(temporary, target)
    except OSError:
        return


def path(folder: str) -> str:
    """Return where the bundle of this interpreter lies."""
    return "{}/__pycache__/bundle.{}".format(folder, sys.implementation.cache_tag)


def _module(name: str) -> str:
    return PACKAGE if name == "__init__.py" else PACKAGE + "." + name[: -len(".py")]


def _compile(folder: str, name: str) -> bytes:
    file = os.path.join(folder, name)
    with open(file, "rb") as source:
        return marshal.dumps(compile(source.read(), file, "exec", dont_inherit=True))
