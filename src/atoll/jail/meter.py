"""What a sandbox uses, told from /proc where no control group counts for us."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def processes(top: int) -> list[int]:
    """`top` and its descendants; orphans among them are init's children, so none is missed."""
    found, queue = [], [top]
    while queue:
        pid = queue.pop()
        found.append(pid)
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
            for task in tasks:
                queue += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
        except OSError:
            continue
    return found


def cpu_seconds(top: int) -> float:
    """CPU time of all processes, ended children included."""
    total = 0
    for pid in processes(top):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total / _TICKS


def memory_bytes(top: int, enough: int) -> int:
    """Memory of all processes; exact (shared pages counted once) only where over `enough`."""
    pids = processes(top)
    total = sum(_resident(pid) for pid in pids)
    return total if total <= enough else sum(_proportional(pid) for pid in pids)


def _resident(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1])) * _PAGE


def _proportional(pid: int) -> int:
    """Anonymous and shared-memory pages, shared ones by their share; mapped files are not ours."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0
    sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return sizes.get("Pss_Anon", sizes.get("Pss", 0)) + sizes.get("Pss_Shmem", 0)
