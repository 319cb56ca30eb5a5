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

    Modules = list[tuple[str, Any]]

PACKAGE, ENTRY = "guest", "__main__"


def start(modules: Modules, root: str, folder: str, entry: str = ENTRY) -> None:
    """Run a guest in the working folder `folder`; the runtime lies in `root`.

    `entry` is the module whose `main` is called. Until then nothing is garbage, so nothing is
    collected; and no collection of the guest's has to look at the runtime.
    """
    import gc

    gc.disable()
    for name, code in modules:
        _run(name, code, root + "/" + PACKAGE)
    main = __import__(PACKAGE + "." + entry, None, None, ("main",)).main
    gc.freeze()
    gc.enable()
    main(folder)


def _run(name: str, code: Any, folder: str) -> None:
    """Import a module whose code is at hand, and all that it imports: the import system is slow."""
    own = name[len(PACKAGE) + 1 :]
    file = "{}/{}.py".format(folder, own or "__init__")
    module = sys.modules[name] = type(sys)(name)
    spec = sys.modules["_frozen_importlib"].ModuleSpec(name, None, origin=file, is_package=not own)
    vars(module).update(__file__=file, __package__=PACKAGE, __spec__=spec)
    if not own:
        spec.submodule_search_locations = vars(module)["__path__"] = [folder]
    exec(code, vars(module))
    if own:
        setattr(sys.modules[PACKAGE], own, module)


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
    names = sorted(name for name in os.listdir(folder) if name.endswith(".py"))
    facts = [os.stat(os.path.join(folder, name)) for name in names]
    found = [(name, one.st_mtime_ns, one.st_size) for name, one in zip(names, facts)]
    return repr((sys.version, found)).encode() + b"\n"


def _modules(folder: str) -> tuple[Any, Modules]:
    """Return this module; and ENTRY, after all that it imports, each after what it imports."""
    import ast

    found: dict[str, Any] = {}
    visited = set()

    def visit(name: str) -> None:
        file = os.path.join(folder, name + ".py")
        if name in visited or not os.path.exists(file):
            return
        visited.add(name)
        with open(file, "rb") as source:
            tree = ast.parse(source.read(), file)
        for needed in _imported(tree):
            visit(needed)
        found[name] = _compile(tree, "{}/{}.py".format(PACKAGE, name))  # no path of the host

    visit("__init__")
    visit(ENTRY)
    visit("bundle")
    own, package = found.pop("bundle"), found.pop("__init__")
    rest = [(PACKAGE + "." + name, code) for name, code in found.items()]
    return own, [(PACKAGE, package), *rest]


def _imported(tree: Any) -> list[str]:
    """Return the modules of the package that a module imports when it is loaded."""
    found: list[str] = []
    for node in tree.body:
        if type(node).__name__ == "ImportFrom" and node.level == 1:
            found += [node.module] if node.module else [one.name for one in node.names]
    return found


def _compile(tree: Any, file: str) -> Any:
    """Compile a module; what it imports of __future__ is a flag, and nothing to import."""
    import __future__

    tree.body = [node for node in tree.body if getattr(node, "module", None) != "__future__"]
    flag = __future__.annotations.compiler_flag
    return compile(tree, file, "exec", flag, dont_inherit=True)
