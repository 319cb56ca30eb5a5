"""Kernel restrictions of the worker where supported; the backend does not promise them."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import sysconfig
from typing import TYPE_CHECKING

from atoll.jail.walls import landlock, seccomp, syscalls

if TYPE_CHECKING:
    from collections.abc import Callable

RESERVED = 2 << 30
"""Address space that libraries map and never use; guest/core/memory measures what is used."""


def folders() -> list[str]:
    """Return the folders of the interpreter and its libraries."""
    paths = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *sys.path]
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return sorted({os.path.realpath(p) for p in (*paths, package) if p and os.path.isdir(p)})


def limit(memory: int | None, open_files: int) -> None:
    """Set hard limits: memory with some reserve, descriptors, and no writing of files."""
    syscalls.prefer_to_end(syscalls.GUEST_ENDS)
    table = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: open_files,
    }
    if memory is not None:
        table[resource.RLIMIT_DATA] = memory + RESERVED
    for kind, value in table.items():
        _, hard = resource.getrlimit(kind)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))


def build(readable: list[str]) -> tuple[str, ...]:
    """Set up Landlock, capabilities and seccomp; return the names of those that worked."""
    steps: dict[str, Callable[[], object]] = {
        "no-new-privileges": lambda: syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1),
        "landlock": lambda: _restrict(readable),
        "capabilities": syscalls.drop_capabilities,
        "seccomp": lambda: syscalls.install_filter(seccomp.confined_program()),
    }
    standing = []
    for name, step in steps.items():
        with contextlib.suppress(OSError, KeyError):  # an old kernel, an unknown machine
            step()
            standing.append(name)
    return tuple(standing)


def _restrict(readable: list[str]) -> None:
    system = ["/usr/lib", "/lib", "/lib64", "/etc/localtime", f"/proc/{os.getpid()}"]
    if not landlock.restrict([*readable, *system], [], ["/dev/null"], no_tcp=True):
        raise OSError(0, "this kernel has no Landlock")
