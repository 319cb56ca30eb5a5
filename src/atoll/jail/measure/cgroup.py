"""Control groups, version 2 or 1, whichever this host lets us use: memory, pids, CPU accounting.

The supervisor makes one group a sandbox and removes it; a process joins before it is jailed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.jail.supervisor.spec import Limits

PREFIX = "atoll-"
NEEDED = frozenset({"memory", "pids"})
RUNTIME_MEMORY = 16 << 20
"""What the guest's interpreter and its init take before any guest code runs."""
RUNTIME_PROCESSES = 2
MAX_KEPT = 32
MAX_LEFT_CHARGED = 1 << 20
MAX_READ = 1 << 16
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""The number that the kernel gives to the pid namespace of which all others are below."""

Key = tuple[int | None, int | None, int]


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where groups can be made: a folder for each controller (one and the same in version 2)."""

    version: int
    parents: dict[str, Path]

    def create(self, name: str, limits: Limits, runtime: int = RUNTIME_PROCESSES) -> Cgroup:
        """A new group with its limits set; OSError if the host does not let us."""
        folders = {controller: parent / name for controller, parent in self.parents.items()}
        try:
            for folder in folders.values():
                folder.mkdir(exist_ok=True)
            group = Cgroup(self.version, folders)
            group.limit(limits, runtime)
        except OSError:
            Cgroup(self.version, folders).remove()
            raise
        return group

    def sweep(self) -> None:
        """Remove groups that a killed supervisor left behind.

        One of another pid namespace is left unless we see that the namespace is gone: a group is
        empty for a moment before its guest enters.
        """
        parents = set(self.parents.values())
        folders = [group for parent in parents for group in parent.glob(f"{PREFIX}*-*-*")]
        ours = str(_pid_namespace())
        gone = _namespaces_gone({folder.name.split("-")[2] for folder in folders} - {ours})
        for folder in folders:
            _, pid, namespace, *_ = folder.name.split("-")
            dead = namespace == ours and pid.isdigit() and not Path(f"/proc/{pid}").exists()
            if dead or namespace in gone:
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _namespaces_gone(numbers: set[str]) -> set[str]:
    """Return which of these pid namespaces have no process left, if we can see all processes."""
    if not numbers or _pid_namespace() != INITIAL_PID_NAMESPACE:
        return set()
    living = {_namespace_of(process) for process in Path("/proc").glob("[0-9]*")}
    return set() if None in living else {number for number in numbers - living if number.isdigit()}


def _namespace_of(process: Path) -> str | None:
    """Return its pid namespace: "" if that is ours or it has ended, None if it is hidden."""
    try:
        ids = (process / "status").read_text().partition("NSpid:")[2].split("\n")[0].split()
        return str((process / "ns/pid").stat().st_ino) if len(ids) > 1 else ""
    except PermissionError:
        return None
    except OSError:
        return ""


@functools.cache
def _pid_namespace() -> int:
    """Return the number of our pid namespace.

    SECURITY: without it, supervisors in two containers could have the same pid and share a group.
    """
    return os.stat("/proc/self/ns/pid").st_ino


class Groups:
    """Makes groups for guests, and lets clean ones be used again.

    To make and remove a group takes the kernel longer than to fork a process. SECURITY: nothing of
    a guest is left in a group but its counters, which are reset: see Cgroup.reset.
    """

    def __init__(self, hierarchies: Hierarchies) -> None:
        self._hierarchies = hierarchies
        self._numbers = itertools.count(1)
        self._free: dict[Key, list[Cgroup]] = {}
        self.stuck: list[Cgroup] = []
        """Groups that processes would not leave in time, or that could not be removed at once."""
        self._used = 0
        """None is kept when none is in use: where nothing runs, nothing is left."""

    def take(self, limits: Limits, runtime: int = RUNTIME_PROCESSES) -> Cgroup | None:
        """A group with these limits; None if the host does not let us make one after all."""
        free = self._free.get((limits.memory, limits.processes, runtime))
        name = f"{PREFIX}{os.getpid()}-{_pid_namespace()}-{next(self._numbers)}"
        try:
            group = free.pop() if free else self._hierarchies.create(name, limits, runtime)
        except OSError:
            return None
        self._used += 1
        return group

    def open_own(self) -> int | None:
        """Open the entrance of this process's group; None in version 2, or if it cannot be had."""
        own = self._hierarchies.parents["memory"] / "cgroup.procs"
        with contextlib.suppress(OSError):
            if self._hierarchies.version == 1:
                return os.open(own, os.O_WRONLY | os.O_CLOEXEC)
        return None

    def give_back(self, group: Cgroup) -> bool:
        """Keep a group for the next guest, or remove it; False while processes are leaving it."""
        wanted = self._count_free() < min(MAX_KEPT, self._used - 1)
        if wanted and group.reset():
            self._free.setdefault(group.key, []).append(group)
        elif not group.remove():
            return False
        self._not_used()
        return True

    def give_up(self, group: Cgroup) -> None:
        """Remove a group, now or later: no process is in it yet, or not all have left in time."""
        self.stuck.append(group)
        self._not_used()

    def remove_stuck(self) -> None:
        """Try again to remove the groups that were given up."""
        self.stuck = [group for group in self.stuck if not group.remove()]

    def _not_used(self) -> None:
        self._used -= 1
        while self._count_free() > self._used:
            self.stuck.append(max(self._free.values(), key=len).pop(0))
        self.remove_stuck()

    def _count_free(self) -> int:
        return sum(map(len, self._free.values()))

    def close(self) -> None:
        """Remove those that are kept."""
        for group in itertools.chain(self.stuck, *self._free.values()):
            group.remove()
        self._free.clear()


@dataclass(slots=True)
class Cgroup:
    """One sandbox's group."""

    version: int
    folders: dict[str, Path]
    key: Key = (None, None, 0)
    """Its limits, and the processes that are not the guest's."""
    closed: bool = False
    """Whether no process may be forked in it any more."""
    _entrances: list[int] = field(default_factory=list)

    def limit(self, limits: Limits, runtime: int = RUNTIME_PROCESSES) -> None:
        """Write the limits; `runtime` processes that are not the guest's doing come on top."""
        self.key = limits.memory, limits.processes, runtime
        if limits.memory is not None:
            self._limit_memory(limits.memory + RUNTIME_MEMORY)
        if limits.processes is not None:
            self._write("pids", "pids.max", limits.processes + runtime)

    def open(self, *, own: bool = False) -> list[int]:
        """Descriptors that let processes in, to be had before the host's files are gone.

        `own`: for a process with one thread that enters by itself: in version 1 as a thread, since
        the kernel waits for milliseconds (an RCU grace period) before it moves a whole process.
        """
        file = "tasks" if own and self.version == 1 else "cgroup.procs"
        fds: list[int] = []
        try:
            folders = set(self.folders.values())
            fds.extend(os.open(folder / file, os.O_WRONLY | os.O_CLOEXEC) for folder in folders)
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        return fds

    @property
    def entrances(self) -> list[int]:
        """Descriptors by which guests enter, opened once and kept for as long as the group."""
        if not self._entrances:
            self._entrances = self.open(own=True)
        return self._entrances

    def reset(self) -> bool:
        """Make the group as good as new; False if it cannot be.

        Version 2 has counters that cannot be reset. Some of the kernel's own memory may still be
        charged to the guest that was here: with more than a little of it the next would have less.
        """
        if self.version != 1 or self.closed:
            return False
        try:
            if int(self._read("pids", "pids.current")) or self.oom_kills():
                return False
            if int(self._read("memory", "memory.usage_in_bytes")) > MAX_LEFT_CHARGED:
                return False
            self._write("memory", "memory.max_usage_in_bytes", 0)
            if "cpuacct" in self.folders:
                self._write("cpuacct", "cpuacct.usage", 0)
        except OSError:
            return False
        return True

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
        """Return the CPU time of all processes ever in the group; None if it is not counted."""
        try:
            if self.version == 2:
                return int(self._read("memory", "cpu.stat").split()[1]) / 1e6
            return int(self._read("cpuacct", "cpuacct.usage")) / 1e9
        except (OSError, KeyError):
            return None

    def usage_source(self) -> dict[str, Any]:
        """The files that count CPU time and peak memory, and the unit of the first."""
        memory = self.folders["memory"]
        if self.version == 2:
            files = {"cpu": f"{memory}/cpu.stat", "memory": f"{memory}/memory.peak"}
            if not os.path.exists(files["memory"]):  # it came with Linux 5.19
                del files["memory"]
            return {"files": files, "per_second": 1e6}
        files = {"memory": f"{memory}/memory.max_usage_in_bytes"}
        if "cpuacct" in self.folders:
            files["cpu"] = f"{self.folders['cpuacct']}/cpuacct.usage"
        return {"files": files, "per_second": 1e9}

    def emptied(self) -> bool:
        """Kill all processes of the group and forbid new ones; return whether it was empty."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._write("pids", "pids.max", 0)
        pids = self._processes()
        for pid in pids:
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(pid)
                try:
                    if pid in self._processes():  # else the number is another's by now
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                finally:
                    os.close(fd)
        return not pids

    def remove(self) -> bool:
        """Remove the group; False while processes are still leaving it."""
        while self._entrances:
            os.close(self._entrances.pop())
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
        path = f"{self.folders[controller]}/{file}"
        if optional and not os.path.exists(path):
            return
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)

    def _read(self, controller: str, file: str) -> str:
        fd = os.open(f"{self.folders[controller]}/{file}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, MAX_READ).decode()
        finally:
            os.close(fd)


def admit(fds: list[int], pid: int) -> None:
    """Move a process in."""
    try:
        for fd in fds:
            os.write(fd, str(pid).encode())
    finally:
        for fd in fds:
            os.close(fd)


def find(proc: Path = Path("/proc/self")) -> Hierarchies | None:
    """Return the hierarchies that this process may use; None without any."""
    mounts = _mounts(proc / "mountinfo")
    file, own = proc / "cgroup", dict[str, str]()
    text = file.read_text() if file.exists() else ""  # on a kernel without control groups
    for _, controllers, path in (line.split(":", 2) for line in text.splitlines()):
        own.update(dict.fromkeys(controllers.split(","), path))
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
    mounts: dict[str, Path] = {}
    for line in mountinfo.read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        if kind == "cgroup2":
            mounts.setdefault("", Path(before.split()[4]))
        elif kind == "cgroup":
            for option in options.split()[-1].split(","):
                mounts.setdefault(option, Path(before.split()[4]))
    return mounts
