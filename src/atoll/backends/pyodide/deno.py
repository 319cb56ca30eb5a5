"""Finds Deno, which runs Pyodide, and builds its command line."""

from __future__ import annotations

import functools
import importlib
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from atoll.errors import BackendUnavailableError
from atoll.extras import hint as install_hint

BACKEND = "pyodide"
SCRIPTS = str(Path(__file__).resolve().parent / "js")
_TIMEOUT_SECONDS = 30
_ALONE = (
    "--no-prompt",
    "--no-config",
    "--no-lock",
    "--no-remote",
    "--no-npm",
    "--cached-only",
    "--unstable-worker-options",
)
"""Options by which Deno prompts for nothing, downloads nothing, and reads no configuration."""


@dataclass(frozen=True, slots=True)
class Deno:
    """A Deno that works."""

    path: str
    version: str


def find() -> Deno:
    """Return the Deno of the wheel `deno`, or on PATH; BackendUnavailableError says what to do."""
    path = _of_wheel() or shutil.which("deno")
    if path is None:
        raise BackendUnavailableError(BACKEND, *_why_missing())
    path = os.path.realpath(path)
    return Deno(path, _version(path, os.stat(path).st_mtime_ns))


def arguments(script: str, *, reads: list[str], v8: list[str]) -> list[str]:
    """Return the arguments by which Deno runs `script` with permission only to read these paths."""
    flags = ["--disallow-code-generation-from-strings", *v8]
    allowed = f"--allow-read={','.join(reads)}"
    return ["run", *_ALONE, allowed, f"--v8-flags={','.join(flags)}", script]


def _of_wheel() -> str | None:
    try:
        result: str = importlib.import_module("deno").find_deno_bin()
    except (ImportError, AttributeError, OSError):
        return None
    return result


@functools.lru_cache(maxsize=8)
def _version(path: str, _changed: int) -> str:
    command = [path, "--version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_SECONDS, env={}
        )
        name, number, *_ = done.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError) as exc:
        hint = f"{install_hint('pyodide')} --force-reinstall"
        raise BackendUnavailableError(BACKEND, f"{path} does not run: {exc}", hint) from None
    if name != "deno":
        raise BackendUnavailableError(BACKEND, f"{path} says that it is {name!r}, not deno")
    return number


def _why_missing() -> tuple[str, str]:
    if platform.libc_ver()[0] != "glibc":
        return (
            "Deno's wheel is for glibc, and this host has another C library (musl, as on Alpine)",
            "Use a glibc image (Debian, Ubuntu, Fedora ...), or put a deno for musl on PATH.",
        )
    return "Deno is not installed", install_hint("pyodide")
