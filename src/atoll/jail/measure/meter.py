"""CPU time and memory of a sandbox, read from /proc where no control group counts them."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ADDRESS_SPACE, _RESIDENT, _SHARED = 0, 1, 2
_READ = 1 << 16
MAX_MAPS_BYTES = 4 << 20
"""Of lists of mappings, read in one measurement: 40,000 mappings, in some 20 ms."""
SOCKET_BYTES = 256 << 10
"""A socket's buffer, which no guest can enlarge (see seccomp and steps), with its overhead."""
MEMORY_FILE = "/memfd:runsc-memory "
_BLOCK = 512


def processes(roots: list[int]) -> list[int]:
    """These and their descendants; orphans among them are init's children, so none is missed."""
    pids, queue = [], list(reversed(roots))
    while queue:
        pid = queue.pop()
        pids.append(pid)
        queue += children(pid)
    return pids


def children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    pids: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            pids += map(int, read(f"/proc/{pid}/task/{task}/children").split())
    except OSError:
        pass
    return pids


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of these processes, ended children included."""
    total = 0
    for pid in pids:
        try:
            fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total / _TICKS


def cpu_of_ended_children(pid: int) -> float:
    """CPU time of the children that a process has waited for."""
    try:
        fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[13:15])) / _TICKS


def is_runnable(pid: int) -> bool:
    """Return whether a process's main thread has a core, or waits for one."""
    try:
        return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):
        return False


def memory_bytes(init: int, pids: list[int], enough: int) -> int:
    """Memory of a jail's processes; exact (shared pages counted once) only where over `enough`.

    Processes with very many mappings are counted by their address space: a look at each mapping
    would keep the caller from all else.
    """
    sockets = _socket_buffers(pids)
    reserved = sockets + sum(_statm(pid, _ADDRESS_SPACE) for pid in (init, *pids))
    if reserved <= enough:
        return reserved  # they cannot hold more than they have mapped
    shared, with_many_maps = _shared_mappings(pids)
    unseen = sockets + shared + sum(_statm(pid, _ADDRESS_SPACE) for pid in with_many_maps)
    seen = [pid for pid in pids if pid not in with_many_maps]
    total = unseen + sum(_statm(pid, _RESIDENT) for pid in (init, *seen))
    return total if total <= enough else unseen + sum(_proportional(pid) for pid in seen)


def _shared_mappings(pids: list[int]) -> tuple[int, set[int]]:
    """Size of anonymous shared mappings: their pages can be held without being resident.

    Also the processes whose mappings are too many to look at.
    """
    sizes: dict[bytes, int] = {}
    with_many_maps: set[int] = set()
    left = MAX_MAPS_BYTES
    for pid in pids:
        maps = _maps(pid, left)
        left -= len(maps)
        if left < 0:
            with_many_maps.add(pid)
            left = 0
            continue
        for line in maps.splitlines():
            if line.endswith(b"/dev/zero (deleted)"):
                fields = line.split()
                start, _, end = fields[0].partition(b"-")
                size = int(end, 16) - int(start, 16)
                sizes[fields[4]] = max(sizes.get(fields[4], 0), size)
    return sum(sizes.values()), with_many_maps


def _maps(pid: int, most: int) -> bytes:
    """The list of a process's mappings; more than `most` bytes if there is more of it.

    A hidden process counts as too long.
    """
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return file.read(most + 1)
    except PermissionError:
        return b" " * (most + 1)
    except OSError:
        return b""


def _socket_buffers(pids: list[int]) -> int:
    """What the sockets of the jail's network namespace may hold in the kernel at most."""
    for pid in pids:
        try:
            first = Path(f"/proc/{pid}/net/sockstat").read_text().split("\n")[0]
        except OSError:
            continue
        return int(first.split()[-1]) * SOCKET_BYTES
    return 0


def _statm(pid: int, field: int) -> int:
    try:
        return int(read(f"/proc/{pid}/statm").split()[field]) * _PAGE
    except OSError:
        return 0


def anonymous_bytes(pid: int) -> int:
    """Resident memory of a process that is neither a file's nor shared."""
    return _statm(pid, _RESIDENT) - _statm(pid, _SHARED)


def _proportional(pid: int) -> int:
    """Anonymous and shared-memory pages, shared ones by their share; mapped files are not ours.

    A process that has hidden its memory from us is counted by all of its address space.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except PermissionError:
        return _statm(pid, _ADDRESS_SPACE)
    except OSError:
        return 0
    sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return sizes.get("Pss_Anon", sizes.get("Pss", 0)) + sizes.get("Pss_Shmem", 0)


def pid_of(pidfd: int) -> int:
    """Return the pid behind a pidfd; 0 or less if the process is gone."""
    lines = read(f"/proc/self/fdinfo/{pidfd}").split(b"\n")
    return next((int(line.split()[1]) for line in lines if line.startswith(b"Pid:")), 0)


def read(path: str) -> bytes:
    """Return what a file of /proc says; a file object would take twice as many system calls."""
    fd, parts = os.open(path, os.O_RDONLY | os.O_CLOEXEC), []
    try:
        while part := os.read(fd, _READ):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts)


class ContainerMemory:
    """Measures one container; the memory file is looked for until it is found."""

    def __init__(self) -> None:
        self._path = ""
        self._inode = 0

    def measure(self, pids: list[int]) -> int | None:
        """Return the memory of these processes and of their guest; None without a memory file.

        It takes one look at each process, however many files and mappings the guest has. A shared
        context, which is a memory file of the host's, is not counted.
        """
        held = self._file_bytes()
        if held is None:
            self._find(pids)
            held = self._file_bytes()
        return None if held is None else held + sum(map(anonymous_bytes, pids))

    def _file_bytes(self) -> int | None:
        """Return what the file really holds: its size is that of its address space."""
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_blocks * _BLOCK if status.st_ino == self._inode else None

    def _find(self, pids: list[int]) -> None:
        for path in (path for pid in pids for path in _descriptors(pid)):
            try:
                if os.readlink(path).startswith(MEMORY_FILE):
                    self._path, self._inode = path, os.stat(path).st_ino
                    return
            except OSError:
                continue  # it was closed meanwhile


def _descriptors(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []  # it has ended, or is the jail's first process, which nobody may look into
