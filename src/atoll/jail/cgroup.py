"""Control groups, version 2 or 1, whichever this host lets us use: memory, pids, CPU accounting.

The warden makes one group a sandbox and removes it; a process joins before it is jailed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.jail.spec import Limits

PREFIX = "atoll-"
NEEDED = frozenset({"memory", "pids"})
RUNTIME_MEMORY = 16 << 20
"""What the guest's interpreter and its init take before any guest code runs."""
RUNTIME_PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where groups can be made: a folder for each controller (one and the same in version 2)."""

    version: int
    parents: dict[str, Path]

    def create(self, name: str, limits: Limits, runtime: int = RUNTIME_PROCESSES) -> Cgroup:
        """A new group with its limits set; OSError if the host does not let us."""
        folders = {}
        try:
            for controller, parent in self.parents.items():
                folders[controller] = parent / name
                folders[controller].mkdir(exist_ok=True)
            group = Cgroup(self.version, folders)
            group.limit(limits, runtime)
        except OSError:
            Cgroup(self.version, folders).remove()
            raise
        return group

    def sweep(self) -> None:
        """Remove groups that a killed warden left behind."""
        for parent in set(self.parents.values()):
            for folder in parent.glob(f"{PREFIX}*-*"):
                pid = folder.name.removeprefix(PREFIX).split("-")[0]
                if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                    with contextlib.suppress(OSError):
                        folder.rmdir()


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One sandbox's group."""

    version: int
    folders: dict[str, Path]

    def limit(self, limits: Limits, runtime: int = RUNTIME_PROCESSES) -> None:
        """Write the limits; `runtime` processes that are not the guest's doing come on top."""
        if limits.memory is not None:
            self._limit_memory(limits.memory + RUNTIME_MEMORY)
        if limits.processes is not None:
            self._write("pids", "pids.max", limits.processes + runtime)

    def open(self) -> list[int]:
        """Descriptors that let processes in, to be had before the host's files are gone."""
        fds: list[int] = []
        try:
            folders = set(self.folders.values())
            fds.extend(os.open(one / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for one in folders)
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        return fds

    def oom_kills(self) -> int:
        """How many processes the kernel has ended for want of memory."""
        file = "memory.events" if self.version == 2 else "memory.oom_control"
        fields = dict(line.split() for line in self._read("memory", file).splitlines())
        return int(fields.get("oom_kill", 0))

    def peak_memory(self) -> int | None:
        """The most memory ever in use."""
        file = "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
        try:
            return int(self._read("memory", file))
        except OSError:
            return None  # memory.peak came with Linux 5.19

    def cpu_seconds(self) -> float | None:
        """CPU time used by all processes ever in the group; None if nobody counts."""
        try:
            if self.version == 2:
                return int(self._read("memory", "cpu.stat").split()[1]) / 1e6
            return int(self._read("cpuacct", "cpuacct.usage")) / 1e9
        except (OSError, KeyError):
            return None

    def usage_source(self) -> dict[str, Any]:
        """The files that count CPU time and peak memory, and the unit of the first."""
        if self.version == 2:
            named = {"cpu": ("memory", "cpu.stat"), "memory": ("memory", "memory.peak")}
        else:
            named = {
                "cpu": ("cpuacct", "cpuacct.usage"),
                "memory": ("memory", "memory.max_usage_in_bytes"),
            }
        files = {
            name: str(self.folders[controller] / file)
            for name, (controller, file) in named.items()
            if controller in self.folders and (self.folders[controller] / file).exists()
        }
        return {"files": files, "per_second": 1e6 if self.version == 2 else 1e9}

    def emptied(self) -> bool:
        """Kill whoever is in the group, and let nobody be born in it; whether it was empty."""
        with contextlib.suppress(OSError):
            self._write("pids", "pids.max", 0)
        found = self._processes()
        for pid in found:
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(pid)
                try:
                    if pid in self._processes():  # else the number is another's by now
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                finally:
                    os.close(fd)
        return not found

    def remove(self) -> bool:
        """Remove the group; False while processes are still leaving it."""
        done = True
        for folder in set(self.folders.values()):
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                done = False
        return done

    def _processes(self) -> set[int]:
        try:
            return set(map(int, self._read("pids", "cgroup.procs").split()))
        except OSError:
            return set()  # the group is gone

    def _limit_memory(self, limit: int) -> None:
        if self.version == 2:
            self._write("memory", "memory.max", limit)
            self._write("memory", "memory.swap.max", 0, optional=True)
            return
        self._write("memory", "memory.limit_in_bytes", limit)
        self._write("memory", "memory.memsw.limit_in_bytes", limit, optional=True)

    def _write(self, controller: str, file: str, value: int, *, optional: bool = False) -> None:
        path = self.folders[controller] / file
        if path.exists() or not optional:
            path.write_text(str(value))

    def _read(self, controller: str, file: str) -> str:
        return (self.folders[controller] / file).read_text()


def admit(fds: list[int], pid: int) -> None:
    """Move a process in."""
    try:
        for fd in fds:
            os.write(fd, str(pid).encode())
    finally:
        for fd in fds:
            os.close(fd)


def find(proc: Path = Path("/proc/self")) -> Hierarchies | None:
    """The hierarchies that can be used here; None if there are none."""
    mounts = _mounts(proc / "mountinfo")
    own = _own_paths(proc / "cgroup")
    return _find_v2(mounts, own) or _find_v1(mounts, own)


def _find_v2(mounts: dict[str, Path], own: dict[str, str]) -> Hierarchies | None:
    top = mounts.get("")
    if top is None or "" not in own:
        return None
    here = top / own[""].lstrip("/")
    for parent in (here, *here.parents):
        if not parent.is_relative_to(top):
            break
        if _delegated(parent):
            return Hierarchies(2, dict.fromkeys(NEEDED, parent))
    return None


def _delegated(folder: Path) -> bool:
    try:
        enabled = (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
    writable = os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
    return writable and set(enabled) >= NEEDED


def _find_v1(mounts: dict[str, Path], own: dict[str, str]) -> Hierarchies | None:
    parents: dict[str, Path] = {}
    for controller in ("memory", "pids", "cpuacct"):
        if controller in mounts and controller in own:
            folder = mounts[controller] / own[controller].lstrip("/")
            if os.access(folder, os.W_OK):
                parents[controller] = folder
    return Hierarchies(1, parents) if set(parents) >= NEEDED else None


def _mounts(mountinfo: Path) -> dict[str, Path]:
    """Mount points by controller; version 2 under the empty name."""
    found: dict[str, Path] = {}
    for line in mountinfo.read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        if kind == "cgroup2":
            found.setdefault("", Path(before.split()[4]))
        elif kind == "cgroup":
            for option in options.split()[-1].split(","):
                found.setdefault(option, Path(before.split()[4]))
    return found


def _own_paths(file: Path) -> dict[str, str]:
    paths: dict[str, str] = {}
    if not file.exists():
        return paths  # a kernel without control groups
    for line in file.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths
