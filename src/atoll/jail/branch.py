"""A live clone: a guest forks itself, and gets mounts, files and a control group of its own.

    host: "branch" ──▶ warden ──fork──▶ helper: mounts, copies of the guest's folders
    guest ──fork──▶ clone                 │    meanwhile: calls "here", wakes two rights (asked)
                      │ ◀── its mount namespace and root
                      ▼
                    enters them (asked), lays the rights to sleep (asked), "entered"

SECURITY: clone and guest run the same, possibly hostile, code. Whatever is done to mounts is done
by the helper, which trusts nothing that it finds in the guest's folders.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from typing import TYPE_CHECKING, NoReturn

from atoll.jail import cgroup, packets, root, seccomp, syscalls
from atoll.jail.copytree import copy_tree
from atoll.jail.house import is_awake, namespace_of, parent_of
from atoll.jail.spec import GUEST_UID
from atoll.jail.ward import Ward

if TYPE_CHECKING:
    import selectors

    from atoll.jail.cgroup import Cgroup
    from atoll.jail.house import House
    from atoll.jail.listener import Question
    from atoll.jail.spec import Bind

_CREDENTIALS = struct.Struct("3i")
STEPS = ("capset", "setns", "unshare", "chroot", "capset")
"""The calls of a clone in the making, in their order. Each is let through once."""


class BranchWard(Ward):
    """A session that was cloned off another."""

    def __init__(
        self,
        origin: Ward,
        lease: socket.socket,
        status: socket.socket,
        *,
        group: Cgroup | None,
        selector: selectors.BaseSelector,
    ) -> None:
        super().__init__(origin.limits, lease, group, selector)
        assert origin.house is not None
        self._origin, self._status = origin, status
        self.house: House = origin.house
        self._pid = self._helper = self._caller = 0
        self._pidfd: int | None = None
        self._helper_fd: int | None = None
        """While it is at work."""
        self._kept_namespace: int | None = None
        self._steps = list(STEPS)
        origin.branching = self
        self.house.tenants.add(self)
        self._watch(lease.fileno(), self._on_command)
        self._watch(status.fileno(), self._on_status)
        try:
            self._furnish()  # while the guest forks
        except OSError as exc:  # half made, it would leave its sockets with the selector
            self.fail(f"clone: {exc}")
            self.kill()

    def guest_pid(self) -> int:
        """The clone's own process."""
        return self._pid

    def roots(self) -> list[int]:
        """Those of the jail: what the clone has orphaned is init's child."""
        return self.house.roots() if self.mount_namespace else []

    def allows(self, question: Question) -> bool:
        """Whether the clone that is being made may go on with a call."""
        call = self._steps[0] if self._steps else ""
        if not call or question.call != seccomp.asked_number(call):
            return False
        if self._pid != question.pid and (self._pid or not self._adopt(question.pid)):
            return False
        if call == "unshare" and not self._keep_namespace(question.argument):
            return False
        del self._steps[0]
        return True

    def leaving(self) -> bool:
        """Whether it is gone, and may have left processes: told or not, that is looked after."""
        return self._gone and not self._reaped

    def is_over(self) -> bool:
        """Whether nothing of the clone is left."""
        if self._gone and not self._reaped:
            self._reaped = not self._alive() and self._evicted() and self._helper_fd is None
        return super().is_over()

    def _adopt(self, pid: int) -> bool:
        """Take whoever has called here as the clone: one that was given up may still ask."""
        if not self._caller:
            self._on_status()  # it calls before it asks
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
        """Before the clone leaves the namespace that its root is in: somebody has to hold it."""
        if flags == syscalls.CLONE_NEWNS:
            path = f"/proc/{self._pid}/ns/mnt"
            self._kept_namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return flags == syscalls.CLONE_NEWNS

    def _on_status(self) -> None:
        try:
            word, sender = _receive_word(self._status)
        except BlockingIOError:
            return
        if word == b"here" and not self._caller:
            self._caller = sender
        elif word == b"entered" and not self._steps and not is_awake(self._pid):
            self.mount_namespace = namespace_of(self._pid)
            self._origin.branching = None
            self._unwatch(self._status.fileno())
            self.house.lay_to_sleep()
            self._started()
        else:
            self._unwatch(self._status.fileno())
            self.fail("clone: it ended before it was ready")
            self.kill()

    def _furnish(self) -> None:
        """Let a helper do what needs rights; the warden itself never enters a guest's files."""
        self._helper = os.fork()
        if self._helper == 0:
            self._help()
        try:
            self._helper_fd = os.pidfd_open(self._helper)
        except OSError:  # nobody would wait for it
            os.kill(self._helper, signal.SIGKILL)
            os.waitpid(self._helper, 0)
            raise
        self._watch(self._helper_fd, self._on_helper)

    def _help(self) -> NoReturn:
        """In the helper. SECURITY: nothing may unwind into the loop of the warden, its parent."""
        try:
            disk = self.limits.disk if self.limits else None
            groups = self.cgroup.open() if self.cgroup else []
            furnish(self._origin.guest_pid(), disk, self._status, groups, self.house.binds)
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
        """Be gone: the clone itself at once, what it started when it is looked for."""
        self._send(signal.SIGKILL)
        _send_signal(self._helper_fd, signal.SIGKILL)
        if self._origin.branching is self:
            self._origin.branching = None
        super().leave()

    def _send(self, number: signal.Signals) -> None:
        _send_signal(self._pidfd, number)

    def _release(self) -> None:
        self._unwatch(self._status.fileno())
        self._status.close()
        for fd in (self._pidfd, self._kept_namespace):
            if fd is not None:
                self._unwatch(fd)
                os.close(fd)


def _receive_word(status: socket.socket) -> tuple[bytes, int]:
    """The next word and who sent it, by the kernel's word; no bytes at the end."""
    try:
        room = socket.CMSG_SPACE(_CREDENTIALS.size)
        word, ancillary, _, _ = status.recvmsg(64, room, socket.MSG_DONTWAIT)
    except ConnectionError:
        return b"", 0
    return word, next((_CREDENTIALS.unpack(data)[0] for _, _, data in ancillary), 0)


def _send_signal(pidfd: int | None, number: signal.Signals) -> None:
    if pidfd is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(pidfd, number)


def furnish(
    guest: int,
    disk: int | None,
    status: socket.socket,
    groups: list[int],
    binds: tuple[Bind, ...],
) -> NoReturn:
    """Make mounts for a clone: the guest's, with copies of its private folders. Then let it in.

    Whoever fills a page of a file is charged for it: the copies are the clone's. Joining a group
    takes the kernel its time, so only where there is something to copy.
    """

    def fill(source: str, target: str) -> None:
        if groups and os.listdir(source):
            cgroup.admit(groups, 0)
            groups.clear()
        copy_tree(source, target)

    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)  # the guest's does not know us
        spaces = [os.open(f"/proc/{guest}/ns/{name}", os.O_RDONLY) for name in ("user", "mnt")]
        for space in spaces:
            syscalls.join(space)
        os.setresgid(GUEST_UID, GUEST_UID, GUEST_UID)
        os.setresuid(GUEST_UID, GUEST_UID, GUEST_UID)
        syscalls.unshare(syscalls.CLONE_NEWNS)
        covered = root.lift(root.covered(binds))
        root.mount_box("", disk, GUEST_UID, private_app=True, fill=fill)
        root.put_back(covered)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
        mounts = os.open("self/ns/mnt", os.O_RDONLY, dir_fd=proc)
        way_in = [mounts, os.open("/", os.O_PATH | os.O_DIRECTORY)]
        packets.send(status, {"go": True}, way_in)
        os._exit(0)
    finally:
        os._exit(1)
