"""Resource limits of the guest's processes, for what no control group counts or where none is."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from atoll.jail.measure.cgroup import RUNTIME_PROCESSES

if TYPE_CHECKING:
    from atoll.jail.supervisor.spec import Limits

PENDING_SIGNALS = 256
RESERVED = 2 << 30
MAPPED = 4 << 30


def apply(limits: Limits, inherited: int = 0, *, jailed: bool, forked: bool = False) -> None:
    """Set all limits but that of open files, soft and hard alike: the guest cannot raise them.

    `inherited` is address space that it was born with and does not count against it. The kernel
    counts a `forked` guest, but not the pid 1 of its jail, which was there before.
    """
    runtime = RUNTIME_PROCESSES - forked
    for kind, value in _table(limits, inherited, runtime, jailed=jailed):
        _set(kind, value)


def limit_open_files(limits: Limits) -> None:
    """Set the limit of open files, soft and hard alike."""
    _set(resource.RLIMIT_NOFILE, limits.open_files)


def _set(kind: int, value: int) -> None:
    soft, hard = resource.getrlimit(kind)
    limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
    if soft != limit or hard != limit:
        resource.setrlimit(kind, (limit, limit))


def _table(limits: Limits, inherited: int, runtime: int, *, jailed: bool) -> list[tuple[int, int]]:
    table = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, PENDING_SIGNALS),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_STACK, limits.stack),
    ]
    if limits.file_size is not None:
        table.append((resource.RLIMIT_FSIZE, limits.file_size))
    if limits.memory is not None:
        # Bounds for one process, with room for what libraries reserve and never touch; what is
        # really used, by all of them, is for the control group or the supervisor's meter to count.
        table.append((resource.RLIMIT_DATA, limits.memory + RESERVED + inherited))
        room = limits.memory + limits.context + limits.reserved + MAPPED + inherited
        table.append((resource.RLIMIT_AS, room))
    if limits.processes is not None and jailed:  # elsewhere it would count the user's processes
        table.append((resource.RLIMIT_NPROC, limits.processes + runtime))
    return table
