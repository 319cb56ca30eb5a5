"""Freeze a jail: its processes use no CPU until they are thawed; memory and files stay.

Version 2 of control groups has a switch for it. Elsewhere every process of the jail is stopped
by SIGSTOP, again until no new one appears: a process that is not stopped yet may fork another.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.jail.measure import meter
from atoll.jail.supervisor.shared_jail import namespace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

TRY_SECONDS = 1.0
"""In which all processes have to be stopped; a busy machine may not run them at once."""
PAUSE_SECONDS = 0.002


class Freezer:
    """Freezes and thaws the processes of one jail."""

    def __init__(self, folder: str, roots: list[int]) -> None:
        """Take the folder of the jail's control group (may be empty), and its first processes."""
        self._folder, self._roots = folder, roots

    def freeze(self) -> bool:
        """Stop every process; return False, with all of them running, if one cannot be."""
        if self._switch("1"):
            return True
        stopped: set[int] = set()
        for _ in _rounds():
            pids = set(self._processes())
            if not pids:
                return False
            if pids <= stopped and all(map(_is_stopped, pids)):
                return True
            stopped |= {pid for pid in pids if _send(pid, signal.SIGSTOP, self._processes)}
            if not pids <= stopped:
                break
        self.thaw()
        return False

    def thaw(self) -> None:
        """Let every process run again."""
        if not self._switch("0"):
            for pid in self._processes():
                _send(pid, signal.SIGCONT, self._processes)

    def _switch(self, text: str) -> bool:
        """Use the control group's own switch; return False if it is missing."""
        path = Path(self._folder, "cgroup.freeze")
        if not self._folder or not path.exists():
            return False
        with contextlib.suppress(OSError):
            path.write_text(text)
            events = Path(self._folder, "cgroup.events")
            for _ in _rounds():
                if f"frozen {text}" in events.read_text():
                    return True
        return False

    def _processes(self) -> list[int]:
        with contextlib.suppress(OSError):
            if self._folder:
                return [
                    int(part) for part in Path(self._folder, "cgroup.procs").read_text().split()
                ]
        own = {namespace_of(pid) for pid in self._roots}  # a live clone has one of its own
        return [pid for pid in meter.processes(self._roots) if namespace_of(pid) in own]


def _rounds() -> Iterator[None]:
    """Yield again and again, with pauses, for TRY_SECONDS."""
    end = time.monotonic() + TRY_SECONDS
    while time.monotonic() < end:
        yield
        time.sleep(PAUSE_SECONDS)


def _send(pid: int, number: int, still: Callable[[], Iterable[int]]) -> bool:
    """Signal a process if it is one of the jail's; return whether it was, or is gone."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError as exc:
        # It is about to be gone, or to be another program; newer kernels say ENOENT.
        return exc.errno in (errno.EINVAL, errno.ENOENT)
    try:
        if pid in still():  # else the number is another's by now
            signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _is_stopped(pid: int) -> bool:
    """Return whether a process runs no code of its own until it is continued.

    In vfork, a parent sleeps in the kernel until its child runs another program; if the child is
    stopped before it does, the parent keeps its SIGSTOP pending, and cannot run before it either.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True  # it is gone
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    state = fields["State"].split()[0]
    if state == "D":
        return bool(int(fields["ShdPnd"], 16) >> (signal.SIGSTOP - 1) & 1)
    return state in "TtZX"
