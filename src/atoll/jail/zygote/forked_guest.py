"""The supervisor's record of a guest that was forked off a zygote.

    supervisor ── "fork" ──▶ zygote ──fork──▶ guest: builds its jail, "entered" ──▶ supervisor
      ▲                     │
      └────── "ended" ──────┘  (from the zygote host if the zygote has ended before its guest)

See zygote_host_record for what becomes of it when its zygote dies.
"""

from __future__ import annotations

import math
import os
import signal
import time
from typing import TYPE_CHECKING

from atoll.jail.measure import meter
from atoll.jail.supervisor import packets
from atoll.jail.supervisor.jail_record import JailRecord
from atoll.jail.supervisor.pidfds import send_signal
from atoll.jail.supervisor.shared_jail import SharedJail

if TYPE_CHECKING:
    import selectors
    import socket

    from atoll.jail.measure.cgroup import Cgroup
    from atoll.jail.supervisor.spec import ForkRequest, ForkSpec
    from atoll.jail.supervisor.zygote_host_record import ZygoteHostRecord

REAP_SECONDS = 0.5
"""In which a zygote host reports an orphan that has ended; one that ends while a jail's pid 1 is
cloned is reaped by the kernel, and never reported."""


class ForkedGuestRecord(JailRecord):
    """A guest forked off a zygote, in a jail of its own."""

    def __init__(
        self,
        spec: ForkSpec,
        lease: socket.socket,
        *,
        group: Cgroup | None,
        selector: selectors.BaseSelector,
        zygote_host: ZygoteHostRecord,
        guest_fds: list[int],
    ) -> None:
        super().__init__(spec.limits, lease, group, selector)
        self.spec, self._zygote_host = spec, zygote_host
        self._jail = self.shared_jail = SharedJail(
            self.roots, self._end_jail, zygote_host.expect_move
        )
        self._jail.sessions.add(self)
        self._jail.binds, self._jail.root = zygote_host.binds, zygote_host.root
        self._jail.user = zygote_host.user
        self.forking = self._lost = False
        self.number = self.zygote_host_pid = 0
        self._init_fd: int | None = None
        self._guest_fd: int | None = None
        self._guest_fds = guest_fds
        self._reap_deadline = math.inf

    @property
    def in_use(self) -> bool:
        """Whether its end was not reported, or clones of it live in its jail."""
        return not self.end_reported or bool(self._jail.sessions)

    def wake(self) -> None:
        """Let the zygote, its parent, and the zygote host go on, if they were stopped."""
        self._zygote_host.wake()

    def start(self) -> None:
        """Request the guest from the zygote."""
        self._watch(self.lease.fileno(), self._on_command)
        self.number = self._zygote_host.admit(self)
        self._zygote_host.fork_guest(self)

    def request(self) -> ForkRequest:
        """Return the request for the zygote.

        A control group counts the processes of each live clone separately, the rlimit of a user
        would count them together: so there is no rlimit where there is a group.
        """
        limits = {name: getattr(self.spec.limits, name) for name in self.spec.limits.__slots__}
        user = self._jail.user
        if self.cgroup is not None:
            limits["processes"] = None
        return {
            "number": self.number,
            "root": self._jail.root,
            "user": {name: getattr(user, name) for name in user.__slots__},
            "limits": limits,
            "groups": len(self.cgroup.entrances) if self.cgroup else 0,
        }

    def given(self) -> list[int]:
        """Return the descriptors of the request: control groups, then the guest's own."""
        return [*(self.cgroup.entrances if self.cgroup else ()), *self._guest_fds]

    def sent(self) -> None:
        """Close the descriptors that the zygote has received."""
        self.forking = True
        self._close_given()

    def entered(self, pid: int, fds: list[int]) -> None:
        """Note that the guest has entered its jail. `pid` counts in the zygote host's namespace."""
        self.forking, self.zygote_host_pid = False, pid
        self._init_fd, self._guest_fd, *listener = fds
        self._watch(self._init_fd, self._on_init_end)
        for fd in listener:
            self._jail.listen(fd, self._selector)
        if self._gone:
            self._signal_all()
        else:
            self._started()

    def ended(self, status: int, init: int | None = None) -> None:
        """Note that the guest has ended; end the jail unless clones live there.

        If it ended before it had entered the jail, `init` is the pidfd of the jail's pid 1.
        """
        self._wait_status, self._reap_deadline = status, math.inf
        if self._init_fd is None and init is not None:
            self.forking = False
            self.fail("enter_jail: it was ended while it entered its jail")
            self._init_fd = init
            self._watch(init, self._on_init_end)
            self._gone = True
            self._signal_all()
            return
        if init is not None:
            os.close(init)
        self.leave()

    def not_forked(self, reason: str) -> None:
        """Note that there is no guest: it could not be forked, and no `ended` will follow."""
        self.fail(reason)
        self.forking = False
        self.all_gone()

    def zygote_lost(self) -> None:
        """Fail the guest: the zygote died between the request and the answer.

        A child that it may have forked is killed through its control group; without one it ends
        when the host closes its channel. The zygote host ends its jail.
        """
        self.forking, self._lost = False, True
        self.fail("zygote: it was ended while it forked this guest")
        self.all_gone()

    def orphaned(self) -> None:
        """Watch the guest: its zygote has ended, and its end may not be reported."""
        if self._guest_fd is not None and not self._gone:
            self._unwatch(self._guest_fd)  # it may be the second zygote that it outlives
            self._watch(self._guest_fd, self._on_guest_end)

    def _on_guest_end(self) -> None:
        assert self._guest_fd is not None
        self._unwatch(self._guest_fd)
        self._reap_deadline, self.due = time.monotonic() + REAP_SECONDS, True

    def needs_attention(self) -> bool:
        """Return whether to check it again later, also for the report of its end."""
        return self._reap_deadline < math.inf or super().needs_attention()

    def is_over(self) -> bool:
        """Return whether all has ended; kill an orphan whose end is not reported."""
        if time.monotonic() > self._reap_deadline:
            self._reap_deadline = math.inf
            self.kill()
        return super().is_over()

    def _left_group(self) -> bool:
        if self._lost and self.cgroup is not None:
            self.cgroup.emptied()
        return super()._left_group()

    def zygote_host_lost(self) -> None:
        """Note that the guest has ended with its zygote host."""
        if self._guest_fd is None:
            self.fail(self._zygote_host.end_reason())
        self.all_gone()

    def leave(self) -> None:
        """End the guest; one that was not requested yet has no process to wait for."""
        super().leave()
        if not self.forking and self._init_fd is None:
            self.all_gone()

    def guest_pid(self) -> int:
        """Return the guest's pid."""
        return 0 if self._guest_fd is None else max(0, meter.pid_of(self._guest_fd))

    def _guest_pidfd(self) -> int | None:
        return self._guest_fd

    def roots(self) -> list[int]:
        """Return the pids of the jail's pid 1 and of the guest."""
        fds = [fd for fd in (self._init_fd, self._guest_fd) if fd is not None]
        return [pid for pid in map(meter.pid_of, fds) if pid > 0]

    def _on_init_end(self) -> None:
        assert self._init_fd is not None
        self._unwatch(self._init_fd)
        self.all_gone()

    def _signal_guest(self) -> None:
        send_signal(self._guest_fd, signal.SIGINT)

    def _signal_all(self) -> None:
        send_signal(self._init_fd, signal.SIGKILL)

    def _end_jail(self) -> None:
        """Kill the jail: its last session has left."""
        self._signal_all()
        self._zygote_host.out_of_use()

    def _report_end(self) -> None:
        super()._report_end()
        self._zygote_host.out_of_use()

    def _close_given(self) -> None:
        packets.close_all(self._guest_fds)
        self._guest_fds = []

    def _release(self) -> None:
        self._zygote_host.forget(self)
        self._close_given()
        self._jail.close()
        fds, self._init_fd, self._guest_fd = (self._init_fd, self._guest_fd), None, None
        for fd in fds:
            if fd is not None:
                self._unwatch(fd)
                os.close(fd)
