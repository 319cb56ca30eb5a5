"""Reads /proc: descendants of processes, zygotes, memory and descriptors."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_KCMP = {"x86_64": 312, "aarch64": 272}
_SAME_MEMORY = 1  # KCMP_VM


def descendants(root: int | None) -> set[int]:
    """Return every descendant of `root`."""
    parents = dict(_parent(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid for pid in found - {root} if pid is not None}


def zygote_host_and_zygote(supervisor: int | None) -> tuple[int, int] | None:
    """Return the pids of a supervisor's first zygote host and zygote; None before they start."""
    return next(iter(zygote_hosts_and_zygotes(supervisor)), None)


def zygote_hosts_and_zygotes(supervisor: int | None) -> list[tuple[int, int]]:
    """Every zygote host of a supervisor, with its zygote.

    Guests have the zygote's command line, but a pid namespace of their own.
    """
    return [
        (zygote_host, child)
        for zygote_host in _children(supervisor)
        for child in _children(zygote_host)
        if "atoll.jail.zygote.main" in _command(child)
        and _namespace(child) == _namespace(zygote_host)
    ]


def own_memory(pid: int) -> int:
    """Return the anonymous memory of a process in bytes; 0 if it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))
    return 0


def memory_of(pids: Iterable[int]) -> int:
    """Return the proportional memory (Pss) of processes in bytes.

    An address space that several processes share, as sleepers in empty jails do, counts once.
    """
    counted: list[int] = []
    for pid in sorted(pids):
        if not any(_share_memory(pid, other) for other in counted):
            counted.append(pid)
    return sum(map(_proportional, counted))


def _share_memory(one: int, other: int) -> bool:
    number = _KCMP[os.uname().machine]
    return bool(ctypes.CDLL(None).syscall(number, one, other, _SAME_MEMORY, 0, 0) == 0)


def _proportional(pid: int) -> int:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return 0


def descriptors(pid: int) -> int:
    """Return how many files a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def _parent(entry: Path) -> tuple[int, int]:
    with contextlib.suppress(OSError):  # it may end meanwhile
        return int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return int(entry.name), 0


def _children(pid: int | None) -> list[int]:
    with contextlib.suppress(OSError):
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return []


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _namespace(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""
