"""A jail that several sessions live in: one that was started, and live clones of it.

They share pid 1, network and limits of the family; each has a mount namespace, and so files, of
its own, by which its processes are told apart. The last one to leave ends the jail.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from atoll.jail import meter
from atoll.jail.listener import Listener, Verdict

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable

    from atoll.jail.listener import Question
    from atoll.jail.spec import Bind
    from atoll.jail.ward import Ward

LOOKS = 3


class House:
    """Who lives in a jail."""

    def __init__(self, roots: Callable[[], list[int]], end: Callable[[], None]) -> None:
        self.roots, self._end = roots, end
        self.tenants: set[Ward] = set()
        self.listener: Listener | None = None
        self.binds: tuple[Bind, ...] = ()
        """What of the host's its root holds."""

    def leave(self, tenant: Ward) -> None:
        """It goes; the last one ends all."""
        self.tenants.discard(tenant)
        if not self.tenants:
            self._end()

    def evict(self, mount_namespace: int) -> bool:
        """Kill every process with that mount namespace, or nobody's; whether none was left.

        More than one look: a process that forks and ends all the time can be missed by one.
        """
        found = False
        for _ in range(LOOKS):
            for pid in self._members():
                space = namespace_of(pid)
                if space == mount_namespace or self._is_nobodys(space):
                    _kill(pid, space)
                    found = True
        return not found

    def lay_to_sleep(self) -> None:
        """End whoever holds awake the rights that are a clone's in the making."""
        making = {one.branching.guest_pid() for one in self.tenants if one.branching is not None}
        for pid in self._members():
            if pid not in making and is_awake(pid):
                _kill(pid, namespace_of(pid))

    def listen(self, fd: int, selector: selectors.BaseSelector) -> None:
        """Hear what its filter asks."""
        self.listener = Listener(fd, self._judge, selector)

    def close(self) -> None:
        """Nobody is left to ask anything."""
        if self.listener is not None:
            self.listener.close()

    def _judge(self, question: Question) -> Verdict:
        """A guest may have what is meant for it, a clone in the making may go on."""
        if question.wants_gift:
            guests = (one for one in self.tenants if one.guest_pid() == question.pid)
            return next((guest.next_gift() for guest in guests), Verdict())
        clones = [tenant.branching for tenant in self.tenants if tenant.branching is not None]
        return Verdict(allowed=any(clone.allows(question) for clone in clones))

    def _is_nobodys(self, space: int) -> bool:
        """Whether a clone came through there on its way, and left a process behind."""
        if not space or any(tenant.branching is not None for tenant in self.tenants):
            return False  # gone; or it may be the one that is on its way
        return all(space != tenant.mount_namespace for tenant in self.tenants)

    def _members(self) -> list[int]:
        roots = self.roots()
        return [pid for pid in meter.processes(roots) if pid != roots[0]] if roots else []


def is_awake(pid: int) -> bool:
    """Whether a thread of a process has rights in effect."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(
                f"/proc/{pid}/task/{task}/status", encoding="utf-8", errors="replace"
            ) as file:
                rights = next(line for line in file if line.startswith("CapEff:"))
            if int(rights.split()[1], 16):
                return True
    return False


def namespace_of(pid: int) -> int:
    """The number of a process's mount namespace; 0 if it is gone."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except OSError:
        return 0


def parent_of(pid: int) -> int:
    """The number of a process's parent; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _kill(pid: int, mount_namespace: int) -> None:
    """By a descriptor that is opened first: the number may be another's a moment later."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            if namespace_of(pid) == mount_namespace:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)
