"""The modules that every guest starts with, compiled, in one file: a guest starts by one read.

The host writes it beside the compiled modules. A guest without it imports them one by one, as it
does with the modules that few guests need.
"""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Modules = list[tuple[str, bool, Any]]
    """Name, whether it is a package, compiled code; in the order in which they are run."""

PACKAGE, ENTRY, OWN = "guest", "__main__", "entry.bundle"


def start(modules: Modules, root: str, folder: str, entry: str = ENTRY) -> None:
    """Run a guest in the working folder `folder`; the runtime lies in `root`.

    `entry` is the module whose `main` is called. Until then nothing is garbage, so nothing is
    collected; and no collection of the guest's has to look at the runtime.
    """
    import gc

    gc.disable()
    for name, is_package, code in modules:
        _run(name, is_package, code, root)
    main = __import__(PACKAGE + "." + entry, None, None, ("main",)).main
    gc.freeze()
    gc.enable()
    main(folder)


def _run(name: str, is_package: bool, code: Any, root: str) -> None:
    """Import a module whose code is at hand, and all that it imports: the import system is slow."""
    place, (parent, _, own) = root + "/" + name.replace(".", "/"), name.rpartition(".")
    file = place + ("/__init__.py" if is_package else ".py")
    module = sys.modules[name] = type(sys)(name)
    spec = sys.modules["_frozen_importlib"].ModuleSpec(
        name, None, origin=file, is_package=is_package
    )
    vars(module).update(__file__=file, __package__=name if is_package else parent, __spec__=spec)
    if is_package:
        spec.submodule_search_locations = vars(module)["__path__"] = [place]
    exec(code, vars(module))
    if parent:
        setattr(sys.modules[parent], own, module)


def write(folder: str) -> bool:
    """Write the bundle of the modules in `folder` for this interpreter, unless it is up to date.

    Return whether it was out of date. Do nothing where the folder cannot be written to.
    """
    key, target = _key(folder), path(folder)
    try:
        with open(target, "rb") as file:
            if file.readline() == key:
                return False
    except OSError:
        pass
    temporary = "{}.{}".format(target, os.getpid())
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)  # nothing may be compiled yet
        with open(temporary, "wb") as file:
            file.write(key + marshal.dumps(_modules(folder)))
        os.replace(temporary, target)
    except OSError:
        pass
    return True


def path(folder: str) -> str:
    """Return where the bundle of this interpreter lies."""
    return "{}/__pycache__/bundle.{}".format(folder, sys.implementation.cache_tag)


def _key(folder: str) -> bytes:
    """Return a line that differs once a file of the folder does."""
    names = [
        os.path.join(place, name)
        for place, _, files in os.walk(folder)
        for name in files
        if name.endswith(".py")
    ]
    facts = [(name, os.stat(name)) for name in sorted(names)]
    versions = [
        (os.path.relpath(name, folder), status.st_mtime_ns, status.st_size)
        for name, status in facts
    ]
    return repr((sys.version, versions)).encode() + b"\n"


def _modules(folder: str) -> tuple[Any, Modules]:
    """Return this module; and ENTRY, after all that it imports, each after what it imports."""
    import ast

    modules: dict[str, tuple[bool, Any]] = {}
    visited = set()

    def visit(name: str) -> None:
        place = os.path.join(folder, *name.split("."))
        is_package = os.path.isdir(place)
        file = os.path.join(place, "__init__.py") if is_package else place + ".py"
        if name in visited or not os.path.exists(file):
            return
        visited.add(name)
        parent = name.rpartition(".")[0]
        visit(parent)
        with open(file, "rb") as source:
            tree = ast.parse(source.read(), file)
        for needed in _imported(tree, name if is_package else parent):
            visit(needed)
        shown = os.path.join(PACKAGE, os.path.relpath(file, folder))  # no path of the host
        modules[name] = is_package, _compile(tree, shown)

    visit(ENTRY)
    visit(OWN)
    own = modules.pop(OWN)[1]
    named = [(PACKAGE + "." * bool(name) + name, *rest) for name, rest in modules.items()]
    return own, named


def _imported(tree: Any, package: str) -> list[str]:
    """Return the modules of the runtime that a module of a package imports when it is loaded."""
    modules: list[str] = []
    for node in tree.body:
        if type(node).__name__ == "ImportFrom" and node.level:
            parts = package.split(".") if package else []
            base = parts[: len(parts) + 1 - node.level] + ([node.module] if node.module else [])
            modules.append(".".join(base))
            modules += [".".join([*base, alias.name]) for alias in node.names]
    return modules


def _compile(tree: Any, file: str) -> Any:
    """Compile a module without its types; an import of __future__ is a flag."""
    import __future__

    def is_needed(node: Any) -> bool:
        types = getattr(getattr(node, "test", None), "id", "") == "TYPE_CHECKING"
        return not types and getattr(node, "module", None) != "__future__"

    tree.body = list(filter(is_needed, tree.body))
    flag = __future__.annotations.compiler_flag
    return compile(tree, file, "exec", flag, dont_inherit=True)
