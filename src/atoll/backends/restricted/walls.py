"""What the kernel adds around the worker where it can: nothing of it is promised by the ring."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig

from atoll.jail import landlock, rlimits, seccomp, syscalls
from atoll.jail.spec import Limits

PROCESSES = 1


def folders() -> list[str]:
    """Where the interpreter and its libraries are."""
    paths = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *sys.path]
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return sorted({os.path.realpath(p) for p in (*paths, package) if p and os.path.isdir(p)})


def limit(memory: int | None, context: int, open_files: int) -> None:
    """Memory, descriptors, and no file of its own at all."""
    limits = Limits(
        memory=memory,
        processes=None,
        disk=None,
        file_size=0,
        open_files=open_files,
        context=context,
    )
    rlimits.apply(limits, jailed=False)


def build(readable: list[str]) -> tuple[str, ...]:
    """Landlock, no capabilities, the filter of system calls; the names of those that stand."""
    steps = {
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
