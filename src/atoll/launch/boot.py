"""How a guest's interpreter is started: its command line, and the host paths that it has to see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.jail.supervisor.spec import GUEST_CODE, Bind
from atoll.launch import library
from atoll.launch.interpreter import GUEST_FOLDER, package_binds, python_binds, site_code

if TYPE_CHECKING:
    from atoll.launch.interpreter import Interpreter
    from atoll.policy import ExecutionPolicy

_BOOT = """
import marshal, os, sys
root, entry = sys.argv[1:3]
try:
    with open(f"{root}/guest/__pycache__/bundle.{sys.implementation.cache_tag}", "rb", 0) as file:
        data = file.read()
    head = data.index(b"\\n") + 1  # which files it was made of: the host has checked it
    code, modules = marshal.loads(memoryview(data)[head:])
    del data
except (OSError, ValueError, EOFError, TypeError):
    code = None  # what runs in here would have this error in its tracebacks
if code is None:
    sys.path.append(root)
    main = __import__(f"guest.{entry}", None, None, ("main",)).main
    sys.path.remove(root)
    main(os.getcwd())
else:
    boot = {"__name__": "boot"}
    exec(code, boot)
    boot["start"](modules, root, os.getcwd(), entry)
"""
"""Start the runtime from its bundle (see guest/entry/bundle), else module by module."""


def command(
    interpreter: Interpreter, root: str, entry: str = "__main__", *, jailed: bool = True
) -> tuple[str, ...]:
    """Return the command that calls `main` of the module `entry` of the runtime in `root`."""
    code = site_code(interpreter, jailed=jailed) + _BOOT
    start = (*interpreter.launcher, interpreter.path)
    return (*start, "-I", "-B", "-X", "utf8", "-c", code, root, entry)


def binds(interpreter: Interpreter, code: str = GUEST_FOLDER) -> tuple[Bind, ...]:
    """Return the host paths in a guest's root: runtime, interpreter, packages."""
    runtime = Bind(source=code, target=f"{GUEST_CODE}/guest")
    return (runtime, *library.binds(), *package_binds(interpreter), *python_binds(interpreter))


def mount_binds(policy: ExecutionPolicy) -> tuple[Bind, ...]:
    """Return the host paths that a policy adds."""
    return tuple(
        Bind(source=str(mount.source.absolute()), target=mount.target, writable=mount.writable)
        for mount in policy.mounts
    )
