"""Finds the processes of Atoll from outside: by their command lines and by who is whose child.

The only file here that knows names of the product's modules.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from atoll.backends.daemon import connection
from atoll.daemon import lifecycle
from atoll.daemon.paths import DaemonPaths
from atoll.hosting.limits import DaemonLimits
from atoll.jail.measure import cgroup
from atoll.jail.supervisor import client
from atoll.launch import zygote_client

SUPERVISOR = re.compile(rb"from atoll\.jail\.supervisor\.main import main")
ZYGOTE = re.compile(rb"from atoll\.jail\.zygote\.main import main")
WAITS = (
    (client, "ANSWER_SECONDS", 8.0),
    (zygote_client, "FORK_SECONDS", 3.0),
    (connection, "SILENT_SECONDS", 2.0),
)
"""How long the host waits for the supervisor (which has waits of its own), for a zygote, and for a
daemon."""


def start_daemon(socket: Path) -> int:
    """Start a daemon whose sessions have no libraries, and return its process."""
    return lifecycle.start(DaemonPaths(socket), DaemonLimits(), tier="bare")


def sessions_of_daemon(socket: Path) -> int:
    """Return how many sessions a daemon has."""
    return int((lifecycle.status(DaemonPaths(socket)) or {})["sessions"])


def stop_daemon(socket: Path) -> None:
    """End a daemon, if it runs."""
    lifecycle.stop(DaemonPaths(socket))


def supervisor(host: int | None = None) -> int:
    """Return the supervisor of a process, of this one if none is named."""
    return _only(pid for pid in children(host or os.getpid()) if _runs(pid, SUPERVISOR))


def zygotes(host: int | None = None) -> list[int]:
    """Return the zygotes of a host: a guest is a fork of one in another pid namespace."""
    below = [pid for pid in descendants(supervisor(host)) if _runs(pid, ZYGOTE)]
    return [pid for pid in below if pid_namespace(pid) == pid_namespace(parent(pid))]


def zygote(host: int | None = None) -> int:
    """Return the only zygote of a host."""
    return _only(iter(zygotes(host)))


def zygote_host(host: int | None = None) -> int:
    """Return the process that keeps the zygote alive."""
    return parent(zygote(host))


def guest(namespace: str, number: int, host: int | None = None) -> int:
    """Return the process that has a number inside a jail."""
    below = descendants(supervisor(host))
    return _only(pid for pid in below if pid_namespace(pid) == namespace and _inner(pid) == number)


def control_groups(supervisors: set[int]) -> list[str]:
    """Return the control groups that these supervisors have made and not removed."""
    found = cgroup.find()
    parents = set(found.parents.values()) if found else set()
    names = [f"{cgroup.PREFIX}{pid}-*" for pid in supervisors]
    return [str(path) for parent in parents for name in names for path in parent.glob(name)]


def is_populated(group: str) -> bool:
    """Whether a control group has processes."""
    with contextlib.suppress(OSError):
        return bool(Path(group, "cgroup.procs").read_text())
    return False


def descendants(pid: int) -> list[int]:
    found, queue = [], children(pid)
    while queue:
        found.append(queue.pop())
        queue += children(found[-1])
    return found


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def state(pid: int) -> str:
    """Return the letter of a process's state; an empty text if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def pid_namespace(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def _inner(pid: int) -> int:
    """Return the number that a process has in its own pid namespace."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
    return 0


def _runs(pid: int, program: re.Pattern[bytes]) -> bool:
    with contextlib.suppress(OSError):
        return bool(program.search(Path(f"/proc/{pid}/cmdline").read_bytes()))
    return False


def _only(found: Iterator[int]) -> int:
    pids = list(found)
    assert len(pids) == 1, f"one process was looked for, found: {pids}"
    return pids[0]
