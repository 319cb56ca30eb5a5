"""A jail shared by a session and its live clones.

They share pid 1, the network namespace and the limits. Each has a mount namespace, and so files, of
its own; the mount namespace tells which session a process belongs to. The jail ends with the last
session.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from atoll.jail.measure import meter
from atoll.jail.supervisor.listener import Listener, Reply

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable

    from atoll.jail.supervisor.jail_record import JailRecord
    from atoll.jail.supervisor.listener import Notification
    from atoll.jail.supervisor.spec import Bind

SCANS = 3


class SharedJail:
    """The sessions of one jail."""

    def __init__(
        self,
        roots: Callable[[], list[int]],
        end: Callable[[], None],
        expect_move: Callable[[], None],
    ) -> None:
        self.roots, self._end, self.expect_move = roots, end, expect_move
        self.sessions: set[JailRecord] = set()
        self.listener: Listener | None = None
        self.binds: tuple[Bind, ...] = ()
        """Host paths that are mounted in its root."""

    def leave(self, session: JailRecord) -> None:
        """Remove a session; end the jail with the last one."""
        self.sessions.discard(session)
        if not self.sessions:
            self._end()

    def evict(self, mount_namespace: int, scans: int = SCANS) -> bool:
        """Kill every process in that mount namespace, or in no session's; return if none was left.

        Scan several times: one scan can miss a process that forks and exits all the time. The
        kernel gives the number of a namespace that is gone to the next one, such as a new clone's.
        """
        if any(session.mount_namespace == mount_namespace for session in self.sessions):
            return True  # so the namespace of the session that has left is gone
        found = False
        for _ in range(scans):
            for pid in self._members():
                space = namespace_of(pid)
                if space == mount_namespace or self._belongs_to_no_session(space):
                    found = True
                    if pid not in self._clones_in_progress():
                        _kill(pid, space)
        return not found

    def kill_privileged(self) -> None:
        """Kill processes that still hold effective capabilities after a clone was set up."""
        making = self._clones_in_progress()
        for pid in self._members():
            if pid not in making and has_capabilities(pid):
                _kill(pid, namespace_of(pid))

    def _clones_in_progress(self) -> set[int]:
        making = (one.clone_in_progress for one in self.sessions)
        return {clone.guest_pid() for clone in making if clone is not None}

    def listen(self, fd: int, selector: selectors.BaseSelector) -> None:
        """Answer the notifications of its seccomp filter."""
        self.listener = Listener(fd, self._decide, selector)

    def close(self) -> None:
        """Stop answering notifications."""
        if self.listener is not None:
            self.listener.close()

    def _decide(self, notification: Notification) -> Reply:
        """Give a guest its passed descriptor; allow a new clone its next system call."""
        if notification.wants_fd:
            guests = (one for one in self.sessions if one.guest_pid() == notification.pid)
            return next((guest.next_passed_fd() for guest in guests), Reply())
        clones = [
            session.clone_in_progress
            for session in self.sessions
            if session.clone_in_progress is not None
        ]
        asking = next((clone for clone in clones if clone.allows(notification)), None)
        return Reply() if asking is None else Reply(allowed=True, on_accepted=asking.step_taken)

    def _belongs_to_no_session(self, space: int) -> bool:
        """Return whether the mount namespace belongs to no session: a failed clone left it."""
        if not space or any(session.clone_in_progress is not None for session in self.sessions):
            return False  # the process is gone, or it may be the new clone
        return all(space != session.mount_namespace for session in self.sessions)

    def _members(self) -> list[int]:
        roots = self.roots()
        return [pid for pid in meter.processes(roots) if pid != roots[0]] if roots else []


def has_capabilities(pid: int) -> bool:
    """Return whether a thread of the process has effective capabilities."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            status = meter.read(f"/proc/{pid}/task/{task}/status")
            if int(status.rpartition(b"\nCapEff:")[2].split()[0], 16):
                return True
    return False


def namespace_of(pid: int) -> int:
    """Return the inode of a process's mount namespace; 0 if the process is gone."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except OSError:
        return 0


def parent_of(pid: int) -> int:
    """Return the parent's pid; 0 if the process is gone."""
    try:
        return int(meter.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _kill(pid: int, mount_namespace: int) -> None:
    """Kill by pidfd, and check the namespace after it is open: the pid may have been reused."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            if namespace_of(pid) == mount_namespace:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)
