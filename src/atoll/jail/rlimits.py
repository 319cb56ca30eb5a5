"""Resource limits of the guest's processes, for what no control group counts or where none is."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from atoll.jail.cgroup import RUNTIME_PROCESSES

if TYPE_CHECKING:
    from atoll.jail.spec import Limits

STACK = 8 << 20
PENDING_SIGNALS = 256
MAPPED_CODE = 1 << 30
"""Address space for shared libraries, which is no memory of the guest's."""


def apply(limits: Limits, *, jailed: bool) -> None:
    """Set the limits, soft and hard alike: the guest cannot raise them."""
    for kind, value in _table(limits, jailed=jailed):
        _, hard = resource.getrlimit(kind)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))


def _table(limits: Limits, *, jailed: bool) -> list[tuple[int, int]]:
    table = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, PENDING_SIGNALS),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_STACK, STACK),
        (resource.RLIMIT_NOFILE, limits.open_files),
    ]
    if limits.file_size is not None:
        table.append((resource.RLIMIT_FSIZE, limits.file_size))
    if limits.memory is not None:
        # DATA counts private writable memory, so code sees a MemoryError before the kernel
        # has to kill; AS catches shared mappings, with room for code and the context.
        table.append((resource.RLIMIT_DATA, limits.memory))
        table.append((resource.RLIMIT_AS, limits.memory + limits.context + MAPPED_CODE))
    if limits.processes is not None and jailed:  # elsewhere it would count the user's processes
        table.append((resource.RLIMIT_NPROC, limits.processes + RUNTIME_PROCESSES))
    return table
