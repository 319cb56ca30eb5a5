"""What a jail has used, read by the host: from the jail's control group, or from /proc without one.

SECURITY: a result's CPU time and memory come from here. Nothing that the guest says is used.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.jail.measure import meter
from atoll.jail.measure.freezer import Freezer

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLOCK_OF_ALL_THREADS = 2  # CPUCLOCK_SCHED, see clock_getcpuclockid(3)
_SIZE = 4096
_NOW = {"memory.max_usage_in_bytes": "memory.usage_in_bytes", "memory.peak": "memory.current"}
"""The file of memory in use, beside the one of the most that ever was, for both versions."""
_MAX_LOOKED_AT = 64
"""Processes whose state is read."""
CROWD = 32
"""Runnable processes that are kept from a core by each other more than by other guests."""
_UNCOUNTED = 1 << 20
"""The kernel counts pages for each core apart and sums up now and then: so much may be missing."""


class JailUsage:
    """Reads the counters of one jail; a reading takes microseconds and asks no other process."""

    def __init__(self, source: Mapping[str, Any]) -> None:
        """Take what the supervisor said when the jail started: see JailRecord.usage_source."""
        self._paths: dict[str, str] = dict(source.get("files", {}))
        folder, name = os.path.split(self._paths.get("memory", ""))
        if name in _NOW:
            self._paths["memory_now"] = f"{folder}/{_NOW[name]}"
        self._per_second: float = source.get("per_second", 1)
        self._pid: int = source.get("pid", 0)
        self._parent: int = source.get("parent", 0)
        self._forked: bool = source.get("forked", False)
        self._process: ProcessUsage | None = None
        self._fds: dict[str, int] = {}
        self.started: set[int] = set()
        """Processes that the host started beside the guest, which pid 1 is not the parent of."""

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of all processes so far; None if nothing counts it."""
        counted = self._read("cpu")
        if counted is None:
            return self._of_process().cpu_seconds()
        return counted / self._per_second

    def counted_cpu_seconds(self) -> float | None:
        """Return the CPU time of all processes so far, also ended ones; None if not counted."""
        counted = self._read("cpu")
        return None if counted is None else counted / self._per_second

    def peak_memory(self) -> int | None:
        """Return the most memory that was in use, in bytes; None if nothing counts it."""
        counted = self._read("memory")
        return self._of_process().peak_memory() if counted is None else counted

    def memory(self) -> int | None:
        """Return the memory in use now, in bytes; None if nothing counts it."""
        counted = self._read("memory_now")
        return self._of_process().memory() if counted is None else counted

    def processes(self) -> int | None:
        """Return how many processes the control group has; None without one."""
        members = self._members()
        return None if members is None else len(members)

    def is_runnable(self) -> bool:
        """Return whether one of its processes has a core, or waits for one; False for a crowd.

        The processes of a fork bomb wait for each other: more time would not help the guest.
        """
        members = self._members()
        if members is None:
            return self._of_process().is_runnable()
        runnable = sum(meter.is_runnable(int(pid)) for pid in members[:_MAX_LOOKED_AT])
        return 0 < runnable < CROWD

    def freezer(self) -> Freezer:
        """Return what stops and continues the jail's processes."""
        folder = os.path.dirname(self._paths.get("memory", ""))
        return Freezer(folder, [pid for pid in (self._parent, self._pid, *self.started) if pid])

    def close(self) -> None:
        """Close the counters' files."""
        while self._fds:
            os.close(self._fds.popitem()[1])
        self._paths = {}

    def _members(self) -> list[bytes] | None:
        folder = os.path.dirname(self._paths.get("memory", ""))
        try:
            return Path(folder, "cgroup.procs").read_bytes().split() if folder else None
        except OSError:
            return None

    def _read(self, name: str) -> int | None:
        """Return the number at the end of the first line of a file; None if it is missing."""
        if name not in self._paths:
            return None
        try:
            if name not in self._fds:
                self._fds[name] = os.open(self._paths[name], os.O_RDONLY | os.O_CLOEXEC)
            line = os.pread(self._fds[name], _SIZE, 0).partition(b"\n")[0]
            return int(line.rpartition(b" ")[2])
        except (OSError, ValueError):
            return None  # the control group is gone, and the jail with it

    def _of_process(self) -> ProcessUsage:
        """Return the guest's process.

        Where only its jail's first process is known, the guest is that one's only child, or is it
        itself: the first reading comes before guest code runs, which could start other children.
        """
        if self._process is None:
            children = meter.children(self._parent) if self._parent else []
            guest = self._pid or (children or [self._parent])[0]
            self._process = ProcessUsage(guest, forked=self._forked)
        return self._process


class ProcessUsage:
    """The counters of one process, where no control group counts.

    CPU time is that of its threads and of the children that it waited for. Memory is what it took
    since the first reading. If it was not `forked`, it is at least all that is its own: a runtime
    such as Deno gives memory back after its start, which the guest then takes.
    """

    def __init__(self, pid: int, *, forked: bool = False) -> None:
        self._pid, self._forked = pid, forked
        self._before = self._memory("VmRSS")

    def cpu_seconds(self) -> float | None:
        """Return its CPU time so far; None if it has ended."""
        if self._before is None:
            return None
        try:
            own = time.clock_gettime((~self._pid << 3) | _CLOCK_OF_ALL_THREADS)
        except OSError:
            return None
        return own + meter.cpu_of_ended_children(self._pid)

    def peak_memory(self) -> int | None:
        """Return the most that it held; None if it has ended."""
        return self._held("VmHWM")

    def is_runnable(self) -> bool:
        """Return whether it has a core, or waits for one."""
        return meter.is_runnable(self._pid)

    def memory(self) -> int | None:
        """Return what it holds now, so at most its peak; None if it has ended.

        A control group counts in the same way: pages shared with the zygote are not its own.
        """
        return self._held("VmRSS")

    def _held(self, field: str) -> int | None:
        used = self._memory(field)
        if used is None or self._before is None:
            return None
        own = 0 if self._forked else self._memory("RssAnon") or 0
        return max(0, used - self._before, own) + _UNCOUNTED

    def _memory(self, field: str) -> int | None:
        try:
            lines = Path(f"/proc/{self._pid}/status").read_text("utf-8", "replace").splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith(field)), None)
