"""One sandbox under the warden: its lease, its limits, its control group, its end.

What runs in it, and how it came to be, is for the subclasses: see jailed, hatched, brood.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import selectors
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

from atoll.jail import meter, packets
from atoll.jail.house import namespace_of
from atoll.jail.listener import Verdict
from atoll.jail.spec import SHOWN_FOLDERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.jail.branch import BranchWard
    from atoll.jail.cgroup import Cgroup
    from atoll.jail.house import House
    from atoll.jail.spec import Limits

GROUP_PATIENCE_SECONDS = 5.0
KILL_PATIENCE_SECONDS = 5.0
"""Then the host is told that a sandbox has ended, though the kernel has not ended it yet: the
process that has to reap its processes, or has yet to say which they are, stands still."""
MEMORY_SLACK = 32 << 20
MEASURE_PAUSE = 20
"""A sandbox that takes long to measure is measured less often: a twentieth of the time at most."""
_SHOWN = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Ward(ABC):
    """What the warden knows of one sandbox."""

    def __init__(
        self,
        limits: Limits | None,
        lease: socket.socket,
        group: Cgroup | None,
        selector: selectors.BaseSelector,
    ) -> None:
        self.limits, self.lease, self.cgroup, self._selector = limits, lease, group, selector
        self._killed = self._gone = self._reaped = self._told = self._over_memory = False
        self._wait_status: int | None = None
        self._failure: str | None = None
        self._deadline: float | None = None
        self._kill_deadline, self._measure_at = math.inf, 0.0
        self._final: dict[str, Any] = {}
        self._gifts: deque[int] = deque()
        lease.setblocking(False)
        self.due = self._measured()
        """Whether the warden has to look at it: it is going, or its memory is measured."""
        self.house: House | None = None
        self.mount_namespace = 0
        self.branching: BranchWard | None = None
        """The clone of this one that is being made."""
        self.admit_branch: Callable[[Ward, socket.socket, socket.socket], None] | None = None
        self.give_back: Callable[[Cgroup], bool] | None = None
        """Where its control group goes, if not away."""

    @abstractmethod
    def guest_pid(self) -> int:
        """The guest's own process, as numbered here; 0 if there is none."""

    @abstractmethod
    def roots(self) -> list[int]:
        """The processes that all others descend from; empty before there are any."""

    @abstractmethod
    def _signal_guest(self) -> None:
        """SIGINT for the guest."""

    @abstractmethod
    def _signal_all(self) -> None:
        """SIGKILL for everything."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of descriptors and files."""

    def kill(self) -> None:
        """End every process of the sandbox."""
        if not self._killed:
            self._killed = self.due = True
            self._kill_deadline = time.monotonic() + KILL_PATIENCE_SECONDS
        self.leave()

    def leave(self) -> None:
        """Be gone: with the whole jail, unless others live in it."""
        if self._gone or self._reaped:
            return  # the numbers may be somebody else's by now
        self._gone = self.due = True
        if self.house is None:
            self._signal_all()
        else:
            self.house.leave(self)

    def all_gone(self) -> None:
        """No process is left."""
        self._reaped = self.due = True

    def retire(self) -> None:
        """End as soon as no other sandbox depends on this one: at once, unless it is a nursery."""
        self.kill()

    @property
    def told(self) -> bool:
        """Whether the host has heard of its end."""
        return self._told

    def needs_attention(self) -> bool:
        """Whether time alone can change something: memory to measure, a group to remove."""
        return self._reaped or self._killed or self.leaving() or self._measured()

    def leaving(self) -> bool:
        """Whether it is gone from a jail that others live in, and may have left processes."""
        lives_on = self.house is not None and bool(self.house.tenants)
        return self._gone and lives_on and not self._told

    def check_memory(self) -> None:
        """Without a control group, end a sandbox whose processes together are over the limit."""
        started = time.monotonic()
        if not self._measured() or self._reaped or started < self._measure_at:
            return
        assert self.limits is not None
        assert self.limits.memory is not None
        limit = self.limits.memory + self.limits.context + MEMORY_SLACK
        found = self._processes()
        if found and meter.memory_bytes(found[0], found[1:], limit) > limit:
            self._over_memory = True
            self.kill()
        took = time.monotonic() - started
        self._measure_at = started + took * MEASURE_PAUSE

    def is_over(self) -> bool:
        """Whether all is gone: processes, and the control group unless it will not go."""
        overdue = time.monotonic() > self._kill_deadline
        if overdue or (self.leaving() and self._evicted()):
            self._say_farewell()
        if not self._reaped:
            return False
        if self._deadline is None:
            self._deadline = time.monotonic() + GROUP_PATIENCE_SECONDS
            self._final = self._report()
        if self._left_group():
            self.cgroup = None
            return True
        return time.monotonic() > self._deadline

    def _left_group(self) -> bool:
        """Whether its control group is removed, or kept for another sandbox."""
        if self.cgroup is None:
            return True
        return self.cgroup.remove() if self.give_back is None else self.give_back(self.cgroup)

    def close(self) -> None:
        """Say how it ended, and let go of everything."""
        self._release()
        self._keep_gifts([])
        self._say_farewell()

    def _evicted(self) -> bool:
        """Whether none of its processes is left in a jail that lives on."""
        assert self.house is not None
        self.house.lay_to_sleep()
        if self.cgroup is not None and not self.cgroup.emptied():
            return False
        return not self.mount_namespace or self.house.evict(self.mount_namespace)

    def _say_farewell(self) -> None:
        if self._told:
            return
        self._told = True
        self._unwatch(self.lease.fileno())
        final = self._final or self._report()
        self.tell("failed" if self._failure else "ended", **final)
        self.lease.close()

    def fail(self, reason: str) -> None:
        """Note why it could not be started: the first reason counts."""
        self._failure = self._failure or reason

    def tell(self, event: str, **fields: Any) -> None:
        """Send the host an event."""
        with contextlib.suppress(OSError):
            packets.send(self.lease, {"event": event, **fields})

    def _started(self) -> None:
        self.tell(
            "started",
            cgroup=self.cgroup.version if self.cgroup else None,
            usage=self.usage_source(),
        )

    def usage_source(self) -> dict[str, Any]:
        """What the host reads CPU time and memory from: see atoll.jail.usage."""
        source = self.cgroup.usage_source() if self.cgroup else {"files": {}}
        if len(source["files"]) == 2:
            return source
        if pid := self.guest_pid():
            return {**source, "pid": pid}
        return {**source, "parent": next(iter(self.roots()), 0)}

    def _on_command(self) -> None:
        """Do what the host asks on the lease; its end means kill."""
        try:
            command, fds = packets.receive(self.lease)
        except BlockingIOError:
            return
        except OSError:
            command, fds = b"", []
        if command == b"give":
            self._keep_gifts(fds)
        elif command == b"branch" and len(fds) == 2:
            self._branch(socket.socket(fileno=fds[0]), socket.socket(fileno=fds[1]))
        elif command == b"interrupt":
            self._signal_guest()
        elif command == b"usage":
            self.tell("usage", cpu_seconds=self._cpu_seconds())
        elif command == b"folders":
            self._show_folders()
        elif command == b"retire":
            self.retire()
        else:
            self.kill()
        if not command:
            self._unwatch(self.lease.fileno())

    def _show_folders(self) -> None:
        """Let the host have the guest's folders; none if they are gone."""
        fds = self._open_folders()
        try:
            with contextlib.suppress(OSError):
                packets.send(self.lease, {"event": "folders"}, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _open_folders(self) -> list[int]:
        """Through the root of the guest's process, which is still its own when all are open."""
        fds: list[int] = []
        pid = self.guest_pid()
        with contextlib.suppress(OSError):
            for folder in SHOWN_FOLDERS:
                fd = os.open(f"/proc/{pid}/root{folder}", _SHOWN)
                fds.append(fd)
            if pid and self.guest_pid() == pid:
                return fds
        for fd in fds:
            os.close(fd)
        return []

    def _keep_gifts(self, fds: list[int]) -> None:
        for fd in self._gifts:
            os.close(fd)
        self._gifts = deque(fds)

    def next_gift(self) -> Verdict:
        """A descriptor that the host has for the guest: it told us before it told the guest."""
        while not self._gifts and _readable(self.lease):
            self._on_command()
        return Verdict(gift=self._gifts.popleft()) if self._gifts else Verdict()

    def _branch(self, lease: socket.socket, status: socket.socket) -> None:
        """The host is about to ask the guest to clone itself; one clone at a time."""
        listener = self.house.listener if self.house else None
        able = listener is not None and listener.open
        if self.admit_branch is not None and able and self.branching is None:
            self.admit_branch(self, lease, status)
            return
        reason = "clone: another one is being made" if able else "clone: this jail allows none"
        with lease, status, contextlib.suppress(OSError):
            lease.send(json.dumps({"event": "failed", "reason": reason}).encode())

    def _report(self) -> dict[str, Any]:
        if self._failure:
            return {"reason": self._failure}
        if self._wait_status is None:  # a clone's parent is the guest it came from
            return {"out_of_memory": self._over_memory or self._group_killed()}
        status = self._wait_status
        # The kernel may have ended a grandchild long ago: it counts if it ended the guest.
        ended = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        return {
            "exit": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "out_of_memory": (ended and self._group_killed()) or self._over_memory,
            "peak_memory": self.cgroup.peak_memory() if self.cgroup else None,
            "cpu_seconds": self.cgroup.cpu_seconds() if self.cgroup else None,
        }

    def _group_killed(self) -> bool:
        try:
            return self.cgroup is not None and self.cgroup.oom_kills() > 0
        except OSError:
            return False  # nobody can tell any more; an end that is not reported would be worse

    def _measured(self) -> bool:
        return self.cgroup is None and self.limits is not None and self.limits.memory is not None

    def _cpu_seconds(self) -> float:
        counted = self.cgroup.cpu_seconds() if self.cgroup else None
        return meter.cpu_seconds(self._processes()) if counted is None else counted

    def _processes(self) -> list[int]:
        """The jail's first process, and all that are this sandbox's own."""
        found = meter.processes(self.roots())
        if not self.mount_namespace:
            return found  # nobody else ever lived there
        own = [pid for pid in found[1:] if namespace_of(pid) == self.mount_namespace]
        return found[:1] + own

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def _unwatch(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)


def _readable(sock: socket.socket) -> bool:
    return sock.fileno() >= 0 and bool(select.select([sock], [], [], 0)[0])


class StatusLines:
    """The lines that a jail in the making sends on its status socket, and a descriptor at most."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.read_fd, self.write_fd = self._ours.fileno(), self._theirs.fileno()

    def read(self) -> tuple[list[tuple[str, str]], list[int]] | None:
        """The next lines, each as a word and the rest, and descriptors; None at the end."""
        try:
            data, fds = packets.receive(self._ours)
        except BlockingIOError:
            return [], []  # they are still there
        except OSError:
            return None
        if not data:
            return None
        parts = (line.partition(" ") for line in data.decode(errors="replace").splitlines())
        return [(word, rest) for word, _, rest in parts], fds

    def handed_over(self) -> None:
        """The other end is another process's now."""
        self._theirs.close()

    def close(self) -> None:
        """Let go of our end."""
        self._ours.close()
