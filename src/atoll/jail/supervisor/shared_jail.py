"""A jail shared by a session and its live clones.

They share pid 1, the network namespace and the limits. Each has a mount namespace, and so files, of
its own; the mount namespace tells which session a process belongs to. The jail ends with the last
session.

Answers seccomp notifications: requests for a passed descriptor, and the calls of a live clone.

A guest takes the next descriptor that the host passes to it by calling `setns` with fd -1; so no
socket has to stay open in the guest. SECURITY: only the calls of a clone that the host requested
are allowed. Other calls are refused; after MAX_REFUSALS the listener closes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.jail.measure import meter
from atoll.jail.supervisor.spec import GUEST
from atoll.jail.walls import notices, seccomp

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable

    from atoll.jail.supervisor.jail_record import JailRecord
    from atoll.jail.supervisor.spec import Bind
    from atoll.jail.walls.notices import Notice

_ANY = 0xFFFFFFFF
MAX_REFUSALS = 64
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
        self.root = ""
        """Where the sessions have their roots, if each has its own: see writable_root."""
        self.user = GUEST

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
        any_left = False
        for _ in range(scans):
            for pid in self._members():
                space = namespace_of(pid)
                if space == mount_namespace or self._belongs_to_no_session(space):
                    any_left = True
                    if pid not in self._clones_in_progress():
                        _kill(pid, space)
        return not any_left

    def kill_privileged(self) -> None:
        """Kill processes that still hold effective capabilities after a clone was set up."""
        making = self._clones_in_progress()
        for pid in self._members():
            if pid not in making and has_capabilities(pid):
                _kill(pid, namespace_of(pid))

    def _clones_in_progress(self) -> set[int]:
        making = (session.clone_in_progress for session in self.sessions)
        return {clone.guest_pid() for clone in making if clone is not None}

    def listen(self, fd: int, selector: selectors.BaseSelector) -> None:
        """Answer the notifications of its seccomp filter."""
        self.listener = Listener(fd, self._decide, selector)

    def close(self) -> None:
        """Stop answering notifications."""
        if self.listener is not None:
            self.listener.close()

    def _decide(self, notice: Notice) -> Reply:
        """Give a guest its passed descriptor; allow a new clone its next system call."""
        if wants_fd(notice):
            guests = (session for session in self.sessions if session.guest_pid() == notice.pid)
            return next((guest.next_passed_fd() for guest in guests), Reply())
        clones = [
            session.clone_in_progress
            for session in self.sessions
            if session.clone_in_progress is not None
        ]
        asking = next((clone for clone in clones if clone.allows(notice)), None)
        return Reply() if asking is None else Reply(allowed=True, on_accepted=asking.step_taken)

    def _belongs_to_no_session(self, space: int) -> bool:
        """Return whether the mount namespace belongs to no session: a failed clone left it."""
        if not space or any(session.clone_in_progress is not None for session in self.sessions):
            return False  # the process is gone, or it may be the new clone
        return all(space != session.mount_namespace for session in self.sessions)

    def _members(self) -> list[int]:
        roots = self.roots()
        started = [pid for session in self.sessions for pid in session.started_pids()]
        pids = meter.processes([*roots, *started])
        return [pid for pid in pids if pid != roots[0]] if roots else []


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


def wants_fd(notice: Notice) -> bool:
    """Return whether the guest asks for a passed descriptor: `setns` with fd -1."""
    return notice.call == seccomp.asked_number("setns") and notice.arguments[0] & _ANY == _ANY


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer: continue, add a copy of `passed_fd` to the process, or refuse."""

    allowed: bool = False
    passed_fd: int | None = None
    on_accepted: Callable[[], None] | None = None
    """Called when the process has the answer. A signal may take the question back before: the
    kernel then drops the answer, and the same call is asked about again."""


class Listener:
    """The notifications of one filter. `decide` says what becomes of each."""

    def __init__(
        self, fd: int, decide: Callable[[Notice], Reply], selector: selectors.BaseSelector
    ) -> None:
        self._fd, self._decide, self._selector = fd, decide, selector
        self._refusals = 0
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        selector.register(fd, 1, self._on_event)

    def close(self) -> None:
        """Close the listener; the kernel then answers ENOSYS."""
        if self._fd >= 0:
            if self._fd in self._selector.get_map():  # else a fault has ended the watch
                self._selector.unregister(self._fd)
            os.close(self._fd)
            self._fd = -1

    @property
    def open(self) -> bool:
        """Whether notifications are still answered."""
        return self._fd >= 0

    def _on_event(self) -> None:
        events = dict(self._poll.poll(0)).get(self._fd, 0)
        if events & select.POLLIN:
            notice = notices.receive(self._fd)
            if notice is not None:
                self._consider(notice)
        elif events:
            self.close()  # no process with this filter is left

    def _consider(self, notice: Notice) -> None:
        try:
            reply = self._decide(notice)
        except OSError:
            reply = Reply()  # the process ended while it was checked
        with contextlib.suppress(OSError):  # killed meanwhile, or the question was taken back
            self._answer(notice, reply)
            if reply.on_accepted is not None:
                reply.on_accepted()
        if self._refusals > MAX_REFUSALS:
            self.close()

    def _answer(self, notice: Notice, reply: Reply) -> None:
        if reply.passed_fd is not None:
            number = notices.add_descriptor(self._fd, notice, reply.passed_fd)
            notices.answer(self._fd, notice, number)
        elif reply.allowed:
            notices.proceed(self._fd, notice)
        else:
            self._refusals += 1
            notices.answer(self._fd, notice, 0, errno.EPERM)
