"""Counts what a soak may leave behind, and memory that may grow, before and after it."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from atoll.jail.measure import cgroup
from atoll.jail.supervisor.client import supervisor
from bench import processes

MOST_GROWTH = 0.05
SLACK = 2 << 20
"""Bytes allowed in addition: a small process exceeds the share as soon as a list grows."""


@dataclass(frozen=True, slots=True)
class Remains:
    """Counts of everything that executions create and have to remove."""

    processes: int
    descriptors: int
    supervisor_descriptors: int
    mounts: int
    cgroups: int
    temporary_files: int

    @classmethod
    def now(cls) -> Remains:
        """Count now; the supervisor must be running."""
        assert supervisor.pid is not None
        return cls(
            processes=len(processes.descendants(os.getpid())),
            descriptors=processes.descriptors(os.getpid()),
            supervisor_descriptors=processes.descriptors(supervisor.pid),
            mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
            cgroups=_groups(f"{cgroup.PREFIX}{supervisor.pid}-*"),
            temporary_files=temporary_files(supervisor.pid),
        )

    def more_than(self, before: Remains) -> list[str]:
        """Return what there is more of than before, in words."""
        then = asdict(before)
        return [
            f"{name.replace('_', ' ')}: {then[name]} before, {count} after"
            for name, count in asdict(self).items()
            if count > then[name]
        ]


def temporary_files(maker: int) -> int:
    """Count the private folders that a supervisor has made: other processes have theirs there."""
    return len(list(Path(tempfile.gettempdir()).glob(f"*-{maker}-atoll")))


def memory() -> dict[str, int]:
    """Return the anonymous memory of the long-lived processes, in bytes."""
    pair = processes.zygote_host_and_zygote(supervisor.pid) or (0, 0)
    pids = {
        "host": os.getpid(),
        "supervisor": supervisor.pid or 0,
        "zygote_host": pair[0],
        "zygote": pair[1],
    }
    return {name: processes.own_memory(pid) for name, pid in pids.items()}


def grown(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Return which processes have grown by more than is allowed, in words."""
    for name, held in after.items():
        line = f"memory of the {name}: {before[name] / 1e6:.1f} MB, then {held / 1e6:.1f} MB"
        print(line, file=sys.stderr)
    return [
        f"memory of the {name}: {before[name] / 1e6:.1f} MB before, {held / 1e6:.1f} MB after"
        for name, held in after.items()
        if before[name] and held > before[name] * (1 + MOST_GROWTH) + SLACK
    ]


def _groups(pattern: str) -> int:
    found = cgroup.find()
    parents = set(found.parents.values()) if found else set()
    return sum(len(list(parent.glob(pattern))) for parent in parents)
