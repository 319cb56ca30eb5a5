"""Live clones: a guest forks itself and gets mounts, files and a control group of its own.

    host: "clone" ──▶ supervisor ──fork──▶ helper: mounts, copies of the guest's folders
    guest ──fork──▶ clone                  │    sends "here", raises two capabilities (asked)
                      │ ◀── its mount namespace and root
                      ▼
                    enters them (asked), drops the capabilities (asked), "entered"

`(asked)`: the seccomp filter asks the supervisor, which allows each call once and in order.
SECURITY: clone and guest run the same, possibly hostile, code. Only the helper changes mounts, and
it trusts nothing that it finds in the guest's folders.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from typing import TYPE_CHECKING, NoReturn

from atoll.jail.measure import cgroup
from atoll.jail.supervisor import packets
from atoll.jail.supervisor.jail_record import JailRecord
from atoll.jail.supervisor.pidfds import pidfd_of, send_signal
from atoll.jail.supervisor.shared_jail import has_capabilities, namespace_of, parent_of
from atoll.jail.supervisor.spec import NO_LIMITS
from atoll.jail.walls import seccomp, steps, syscalls

if TYPE_CHECKING:
    import selectors

    from atoll.jail.measure.cgroup import Cgroup
    from atoll.jail.supervisor.shared_jail import SharedJail
    from atoll.jail.walls.notices import Notice

_CREDENTIALS = struct.Struct("3i")
STEPS = ("capset", "setns", "unshare", "chroot", "capset")
"""System calls that a new clone makes, in order. Each is allowed once."""


class CloneRecord(JailRecord):
    """A session that was cloned from another one."""

    def __init__(
        self,
        origin: JailRecord,
        lease: socket.socket,
        status: socket.socket,
        *,
        group: Cgroup | None,
        selector: selectors.BaseSelector,
    ) -> None:
        super().__init__(origin.limits, lease, group, selector)
        assert origin.shared_jail is not None
        self._origin, self._status = origin, status
        self.shared_jail: SharedJail = origin.shared_jail
        self._pid = self._helper = self._caller = 0
        self._pidfd: int | None = None
        self._helper_fd: int | None = None
        """The helper's pidfd while it runs."""
        self._kept_namespace: int | None = None
        self._steps = list(STEPS)
        origin.clone_in_progress = self
        self.shared_jail.sessions.add(self)
        self._watch(lease.fileno(), self._on_command)
        self._watch(status.fileno(), self._on_status)
        if group is not None:
            self.shared_jail.expect_move()

    def guest_pid(self) -> int:
        """The clone's own process."""
        return self._pid

    def _guest_pidfd(self) -> int | None:
        return self._pidfd

    def roots(self) -> list[int]:
        """Return the jail's root processes: the clone's orphans become children of its init."""
        return self.shared_jail.roots() if self.mount_namespace else []

    def allows(self, notice: Notice) -> bool:
        """Return whether the new clone may make this system call now."""
        call = self._steps[0] if self._steps else ""
        if not call or notice.call != seccomp.asked_number(call):
            return False
        if self._pid != notice.pid and (self._pid or not self._adopt(notice.pid)):
            return False
        return call != "unshare" or self._keep_namespace(notice.arguments[0])

    def step_taken(self) -> None:
        """Note that the clone has been allowed its next system call."""
        del self._steps[0]

    def leaving(self) -> bool:
        """Return whether the clone has ended and may have left processes behind."""
        return self._gone and not self._reaped

    def is_over(self) -> bool:
        """Return whether no process of the clone is left."""
        if self._gone and not self._reaped:
            self._reaped = (
                not self._alive() and self._killed_in_shared_jail() and self._helper_fd is None
            )
        return super().is_over()

    def _adopt(self, pid: int) -> bool:
        """Accept the process as the clone if it sent "here"; an abandoned clone may still ask."""
        if not self._caller:
            self._on_status()  # "here" is sent before the first asked call
        if pid != self._caller or parent_of(pid) != self._origin.guest_pid():
            return False
        pidfd = os.pidfd_open(pid)
        try:
            if self.cgroup is not None:
                cgroup.admit(self.cgroup.open(), pid)
        except OSError:
            os.close(pidfd)
            raise
        self._pid, self._pidfd = pid, pidfd
        self._watch(pidfd, self._on_exit)
        return True

    def _keep_namespace(self, flags: int) -> bool:
        """Hold the mount namespace of the clone's root open before the clone leaves it."""
        if flags == steps.HIDING and self._kept_namespace is None:
            path = f"/proc/{self._pid}/ns/mnt"
            self._kept_namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return flags == steps.HIDING

    def _on_status(self) -> None:
        try:
            word, sender = _receive_word(self._status)
        except BlockingIOError:
            return
        if word == b"here" and not self._caller:
            self._caller = sender
        elif word == b"entered" and not self._steps and not has_capabilities(self._pid):
            self.mount_namespace = namespace_of(self._pid)
            self._origin.clone_in_progress = None
            self._unwatch(self._status.fileno())
            self.shared_jail.kill_privileged()
            self._started()
        else:
            self._unwatch(self._status.fileno())
            self.fail("clone: it ended before it was ready")
            self.kill()

    def guest_forks(self) -> None:
        """Start the helper while the guest forks: it has the clone's socket, and waits no more."""
        try:
            if not self._helper and not self._gone:
                self._start_helper()
        except OSError as exc:
            self.fail(f"clone: {exc}")
            self.kill()

    def _start_helper(self) -> None:
        """Start the helper that builds the mounts: the supervisor never touches a guest's files."""
        self._helper = os.fork()
        if self._helper == 0:
            self._run_helper()
        self._helper_fd = pidfd_of(self._helper)
        self._watch(self._helper_fd, self._on_helper)

    def _run_helper(self) -> NoReturn:
        """Run the helper. SECURITY: nothing may unwind into the supervisor's event loop."""
        try:
            jail = steps.Jail(
                limits=self.limits or NO_LIMITS,
                binds=self.shared_jail.binds,
                host_uid=None,
                cgroup_fds=self.cgroup.open(own=True) if self.cgroup else [],
                origin=self._origin.guest_pid(),
                root=self.shared_jail.root,
                user=self.shared_jail.user,
            )
            build_mounts(jail, self._status)
        finally:
            os._exit(1)

    def _on_helper(self) -> None:
        assert self._helper_fd is not None
        self._unwatch(self._helper_fd)
        os.close(self._helper_fd)
        self._helper_fd = None
        _, status = os.waitpid(self._helper, 0)
        if status:
            self.fail("clone: its folders could not be copied (is the disk limit reached?)")
            self.kill()

    def _on_exit(self) -> None:
        assert self._pidfd is not None
        self._unwatch(self._pidfd)
        if not self.mount_namespace:
            self.fail("clone: it ended before it was ready")
        self.kill()

    def _alive(self) -> bool:
        return self._pidfd is not None and self._pidfd in self._selector.get_map()

    def _signal_guest(self) -> None:
        self._send(signal.SIGINT)

    def _signal_all(self) -> None:
        self._send(signal.SIGKILL)

    def leave(self) -> None:
        """Kill the clone now; is_over() finds and kills the processes that it started."""
        self._send(signal.SIGKILL)
        send_signal(self._helper_fd, signal.SIGKILL)
        if self._origin.clone_in_progress is self:
            self._origin.clone_in_progress = None
        super().leave()

    def _send(self, number: signal.Signals) -> None:
        send_signal(self._pidfd, number)

    def _release(self) -> None:
        self._unwatch(self._status.fileno())
        self._status.close()
        for fd in (self._pidfd, self._kept_namespace):
            if fd is not None:
                self._unwatch(fd)
                os.close(fd)


def _receive_word(status: socket.socket) -> tuple[bytes, int]:
    """Return the next word and its sender's pid as the kernel reports it; no bytes at the end."""
    try:
        room = socket.CMSG_SPACE(_CREDENTIALS.size)
        word, ancillary, _, _ = status.recvmsg(64, room, socket.MSG_DONTWAIT)
    except ConnectionError:
        return b"", 0
    return word, next((_CREDENTIALS.unpack(data)[0] for _, _, data in ancillary), 0)


def build_mounts(jail: steps.Jail, status: socket.socket) -> NoReturn:
    """Build a mount namespace for a clone, with copies of its origin's files, and send it."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        steps.take(steps.CLONED, jail)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
        mounts = os.open("self/ns/mnt", os.O_RDONLY, dir_fd=jail.proc_fd)
        way_in = [mounts, os.open(jail.root or "/", os.O_PATH | os.O_DIRECTORY)]
        packets.send(status, "go", way_in)
        os._exit(0)
    finally:
        os._exit(1)
