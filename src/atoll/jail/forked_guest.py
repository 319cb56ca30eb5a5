"""The supervisor's records of a zygote host and of the guests forked off its zygote.

    supervisor ── "fork" ──▶ zygote ──fork──▶ guest: builds its jail, "entered" ──▶ supervisor
      ▲                     │
      └────── "ended" ──────┘  (from the zygote host if the zygote has ended before its guest)

The zygote may die at any moment: the zygote host starts another, waiting requests stay queued, and
forked guests live on.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from atoll.jail import meter, packets
from atoll.jail.jail_record import JailRecord, send_signal
from atoll.jail.shared_jail import SharedJail
from atoll.jail.started_jail import StartedRecord

if TYPE_CHECKING:
    import selectors

    from atoll.jail.cgroup import Cgroup
    from atoll.jail.spec import ForkSpec, ZygoteHostSpec

REAP_SECONDS = 0.5
"""In which a zygote host reports an orphan that has ended; one that ends while a jail's pid 1 is
cloned is reaped by the kernel, and never reported."""


NOTHING = "nothing yet"


class ZygoteHostRecord(StartedRecord):
    """One zygote host: its control socket, its zygote's socket, and its guests."""

    def __init__(
        self, spec: ZygoteHostSpec, lease: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        super().__init__(spec, lease, None, selector)
        self.name, self.binds = spec.name, spec.binds
        self._control, self.their_control = packets.pair()
        self._control.setblocking(False)
        self._zygote: socket.socket | None = None
        self._warm = self._retired = False
        self._numbers = itertools.count(1)
        self._records: dict[int, ForkedGuestRecord] = {}
        self._by_pid: dict[int, ForkedGuestRecord] = {}
        self._waiting: list[ForkedGuestRecord] = []

    def forked(self, pid: int) -> None:
        """Note the pid of the first process."""
        super().forked(pid)
        self.their_control.close()
        self._watch(self._control.fileno(), self._on_zygote_host)

    def abandon(self) -> None:
        """Release everything if the fork failed."""
        super().abandon()
        self._control.close()
        self.their_control.close()

    def admit(self, record: ForkedGuestRecord) -> int:
        """Register a guest that is to be forked; return its number."""
        number = next(self._numbers)
        self._records[number] = record
        return number

    def fork_guest(self, record: ForkedGuestRecord) -> None:
        """Request the guest from the zygote, or queue it until there is one."""
        if self._failure:
            record.zygote_host_lost()
            return
        if self._zygote is None or not self._warm:
            self._waiting.append(record)
            return
        try:
            packets.send(self._zygote, "fork", record.given(), **record.request())
        except BlockingIOError:
            self._waiting.append(record)
        except OSError:
            record.zygote_lost()
        else:
            record.sent()

    def _give_up(self, reason: str) -> None:
        """Fork no more guests: those that run live on, and this ends with the last one."""
        self.fail(reason)
        self._lose_zygote()
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            record.zygote_host_lost()
        self.retire()

    def forget(self, record: ForkedGuestRecord) -> None:
        """Remove the record of a guest that has ended."""
        self._records.pop(record.number, None)
        self._by_pid.pop(record.zygote_host_pid, None)
        if record in self._waiting:
            self._waiting.remove(record)
        if self._retired:
            self.retire()

    def retire(self) -> None:
        """End with the last guest; guests whose end was already reported do not count."""
        self._retired = True
        if all(record.end_reported for record in self._records.values()):
            self.kill()

    def _built(self) -> None:
        """Do nothing yet: the zygote reports when it is warm."""

    def _on_zygote_host(self) -> None:
        message = _receive(self._control)
        if message is None:
            self._unwatch(self._control.fileno())
        elif message.kind == "reaped":
            self._reaped_pids(message.fields["ends"])
        elif message.kind == "zygote":
            self._meet_zygote(message.fds[0])
        elif message.kind == "fatal":
            self._give_up(message.fields["reason"])

    def _meet_zygote(self, fd: int) -> None:
        self._lose_zygote()
        self._zygote = socket.socket(fileno=fd)
        self._zygote.setblocking(False)
        self._watch(fd, self._on_zygote)

    def _on_zygote(self) -> None:
        assert self._zygote is not None
        message = _receive(self._zygote)
        if message is None:
            self._lose_zygote()
            return
        if message.kind == "ready":
            self._warm = True
            with contextlib.suppress(OSError):  # if it has ended, its pidfd reports it
                packets.send(self._control, "warm")
            self.tell("started", zygote=message.fields)
        elif message.kind != NOTHING:
            self._on_guest(message)
        self._fork_waiting()

    def _on_guest(self, message: packets.Message) -> None:
        """Handle a message about a guest, from itself or from the zygote."""
        record = self._records.get(message.fields["number"])
        if record is None:
            packets.close_all(message.fds)
        elif message.kind == "entered":
            self._by_pid[message.fields["pid"]] = record
            record.entered(message.fields["pid"], message.fds)
        elif message.kind == "ended":
            record.ended(message.fields["status"], *message.fds)
        else:
            record.failed(message.fields["reason"])

    def _fork_waiting(self) -> None:
        """Send queued requests: there is a zygote, or room again in its socket."""
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            self.fork_guest(record)

    def _lose_zygote(self) -> None:
        if self._zygote is None:
            return
        self._unwatch(self._zygote.fileno())
        self._zygote.close()
        self._zygote, self._warm = None, False
        for record in list(self._records.values()):
            if record.forking:
                record.zygote_lost()
            else:
                record.orphaned()

    def _reaped_pids(self, ends: list[list[int]]) -> None:
        for pid, status in ends:
            record = self._by_pid.pop(pid, None)
            if record is not None:
                record.ended(status)

    def end_reason(self, otherwise: str = "zygote host: it was ended") -> str:
        """Return why no guest can be forked here any more."""
        return self._failure or otherwise

    def _release(self) -> None:
        """End waiting guests, also if the zygote host never started."""
        super()._release()
        for record in list(self._records.values()):
            record.zygote_host_lost()
        self._unwatch(self._control.fileno())
        self._control.close()
        self._lose_zygote()


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
        self._jail = self.shared_jail = SharedJail(self.roots, self._signal_all)
        self._jail.sessions.add(self)
        self._jail.binds = zygote_host.binds
        self.forking = self._lost = False
        self.number = self.zygote_host_pid = 0
        self._init_fd: int | None = None
        self._guest_fd: int | None = None
        self._guest_fds = [os.dup(fd) for fd in guest_fds]
        self._reap_deadline = math.inf

    def start(self) -> None:
        """Request the guest from the zygote."""
        self._watch(self.lease.fileno(), self._on_command)
        self.number = self._zygote_host.admit(self)
        self._zygote_host.fork_guest(self)

    def request(self) -> dict[str, Any]:
        """Return the request for the zygote.

        A control group counts the processes of each live clone separately, the rlimit of a user
        would count them together: so there is no rlimit where there is a group.
        """
        limits = {name: getattr(self.spec.limits, name) for name in self.spec.limits.__slots__}
        if self.cgroup is not None:
            limits["processes"] = None
        return {
            "number": self.number,
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

    def failed(self, reason: str) -> None:
        """Note that the guest failed to start; after a failed fork there is no `ended`."""
        self.fail(reason)
        if reason.startswith("fork: "):
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


def _receive(sock: socket.socket) -> packets.Message | None:
    """Return the next message, or NOTHING if there is none yet; None at the end."""
    try:
        return packets.receive(sock)
    except BlockingIOError:
        return packets.Message(NOTHING)
    except OSError:
        return None
