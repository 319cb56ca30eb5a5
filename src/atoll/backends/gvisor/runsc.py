"""Finds runsc, gVisor's program, on this machine, and its version and platforms."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from atoll.errors import BackendUnavailableError

BACKEND = "gvisor"
VARIABLE = "ATOLL_RUNSC"
HINT = (
    "Install gVisor: `apt-get install runsc` on Debian and Ubuntu, or put a runsc on PATH or its "
    f"path into ${VARIABLE}."
)
PREFERRED = ("systrap", "ptrace")
"""Platforms, the fastest first. `kvm` needs a device of the host, which a jail does not have."""
_TIMEOUT_SECONDS = 30
_PLATFORMS = re.compile(r"which platform to use: ([^.]*)\.")
_FLAG = re.compile(r"^\s+-([a-zA-Z0-9_-]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Runsc:
    """A runsc that works."""

    path: str
    version: str
    platforms: tuple[str, ...]
    """Its platforms that need no device, the fastest first."""
    flags: frozenset[str]
    """The global flags that it knows."""

    def command(self, path: str, platform: str, *arguments: str) -> tuple[str, ...]:
        """Return the command line of a runsc at `path` in its jail."""
        wanted = {
            "root": "/run/state",
            "platform": platform,
            "network": "none",
            "rootless": "true",
            "ignore-cgroups": "true",
            "overlay2": "none",
            "host-uds": "none",
            "host-fifo": "none",
            "net-raw": "false",
            "directfs": "false",
        }
        flags = [f"--{name}={value}" for name, value in wanted.items() if name in self.flags]
        return (path, *flags, *arguments)

    def is_script(self) -> bool:
        """Return whether it is a script, which needs an interpreter."""
        with open(self.path, "rb") as file:
            return file.read(2) == b"#!"


def find() -> Runsc:
    """Return the runsc of $ATOLL_RUNSC, or on PATH; BackendUnavailableError says what to do."""
    named = os.environ.get(VARIABLE)
    path = shutil.which(named or "runsc")
    if path is None:
        if named:
            reason = f"${VARIABLE} names {named!r}, which cannot be run"
            hint = f"Let ${VARIABLE} name a runsc, or unset it to use the one on PATH."
            raise BackendUnavailableError(BACKEND, reason, hint)
        raise BackendUnavailableError(BACKEND, "runsc is not installed", HINT)
    path = os.path.realpath(path)
    return _ask(path, os.stat(path).st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _ask(path: str, _changed: int) -> Runsc:
    first = _output(path, "--version").partition("\n")[0]
    name, _, version = first.partition(" version ")
    if name != "runsc":
        raise BackendUnavailableError(BACKEND, f"{path} is not runsc: it says {first[:80]!r}", HINT)
    described = _output(path, "flags")
    has = _PLATFORMS.search(described)
    words = re.findall(r"[a-z]+", has[1]) if has else []
    platforms = tuple(platform for platform in PREFERRED if platform in words)
    if not platforms:
        reason = f"{path} has none of the platforms {', '.join(PREFERRED)}"
        raise BackendUnavailableError(BACKEND, reason, HINT)
    return Runsc(path, version.strip(), platforms, frozenset(_FLAG.findall(described)))


def _output(path: str, argument: str) -> str:
    try:
        done = subprocess.run(
            [path, argument],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
            timeout=_TIMEOUT_SECONDS,
            env={},
        )
    except (OSError, subprocess.SubprocessError, ValueError) as exc:
        raise BackendUnavailableError(BACKEND, f"{path} does not run: {exc}", HINT) from None
    return done.stdout
