"""The Python that packages are for: the wheels that fit it, and the pip that finds them."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.errors import PackageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from atoll.launch.interpreter import Interpreter

_ASK_SECONDS = 30
_ASK_KEY = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
_ASK_PIP = """
import glob, importlib.util, json, os
try:
    import ensurepip
    kept = glob.glob(os.path.join(os.path.dirname(ensurepip.__file__), "_bundled", "pip-*.whl"))
except ImportError:
    kept = []
print(json.dumps([importlib.util.find_spec("pip") is not None, kept]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A Python that guests run."""

    key: str
    """A key that is the same for two Pythons that can use the same files."""
    label: str
    """Its name in messages."""
    interpreter: Interpreter
    """Runs pip and the unpacking; for a native guest it is the guest's own."""
    flags: tuple[str, ...] = ()
    """Options of pip that say which wheels fit; none: those of `interpreter`."""
    unpacked: bool = True
    """Whether guests import from files; otherwise they get the wheels."""
    compiled: bool = True
    """Whether `interpreter` compiles the modules; only the guest's own can."""
    finish: Callable[[Path], None] | None = None
    """Called with the unpacked folder before it is stored."""


def for_interpreter(interpreter: Interpreter) -> Target:
    """Return the target of a guest that runs this interpreter."""
    suffix = _suffix(interpreter.path, os.stat(interpreter.path).st_mtime_ns)
    version = ".".join(map(str, interpreter.version[:2]))
    key = suffix.strip(".").removesuffix(".so")
    return Target(key=f"{version}-{key}", label=f"Python {version}", interpreter=interpreter)


def find_pip(interpreter: Interpreter) -> tuple[str, ...]:
    """Return the command of a pip that this interpreter runs; PackageError if it is missing.

    Its markers and tags are then those of the guest. If pip is not installed, the wheel of
    `ensurepip` is used; if that is missing too, uv downloads one.
    """
    installed, bundled = json.loads(_ask(interpreter.path, _ASK_PIP))
    if installed:
        return (interpreter.path, "-I", "-m", "pip")
    if bundled:
        return (interpreter.path, "-I", f"{bundled[0]}/pip")
    if uv := _uv():
        return (uv, "tool", "run", "--python", interpreter.path, "pip")
    reason = f"neither pip nor uv is there to get packages for {interpreter.path}"
    raise PackageError("", reason, f"Type: {interpreter.path} -m ensurepip, or install uv.")


def _uv() -> str | None:
    """Return uv, also that of an environment which is not activated."""
    return shutil.which("uv") or shutil.which("uv", path=os.path.dirname(sys.executable))


@functools.lru_cache(maxsize=64)
def _suffix(path: str, _changed: int) -> str:
    if path == sys.executable or os.path.realpath(path) == os.path.realpath(sys.executable):
        return str(sysconfig.get_config_var("EXT_SUFFIX"))
    return _ask(path, _ASK_KEY).strip()


def _ask(path: str, code: str) -> str:
    try:
        done = subprocess.run(
            [path, "-I", "-c", code],
            capture_output=True,
            check=True,
            text=True,
            timeout=_ASK_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise PackageError("", f"{path} does not run: {exc}", "Is its venv whole?") from None
    return done.stdout
