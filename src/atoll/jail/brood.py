"""A nursery as the warden sees it, and the guests that are forked off its zygote.

    warden ── "shell" ──▶ nursery ──fork──▶ pid 1 of a new jail, built and empty
      │                                            ▲ joins its namespaces
      └────── "hatch" ──▶ zygote ───fork──▶ guest ─┘

The zygote may die at any moment: the nursery starts another, what waits goes on waiting, and
guests that were born live on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

from atoll.jail import packets
from atoll.jail.house import House
from atoll.jail.jailed import StartedWard
from atoll.jail.ward import Ward

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable

    from atoll.jail.cgroup import Cgroup
    from atoll.jail.spec import HatchSpec, NurserySpec

GUEST_UIDS = 65_000


class NurseryWard(StartedWard):
    """One nursery: its control socket, its zygote's, and who waits for what."""

    def __init__(
        self, spec: NurserySpec, lease: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        super().__init__(spec, lease, None, selector)
        self.name, self.binds = spec.name, spec.binds
        self._control, self.their_control = packets.pair()
        self._control.setblocking(False)
        self._zygote: socket.socket | None = None
        self._warm = self._retired = False
        self._numbers = itertools.count(1)
        self._wards: dict[int, HatchedWard] = {}
        self._by_pid: dict[int, HatchedWard] = {}
        self._waiting: list[HatchedWard] = []

    def forked(self, pid: int) -> None:
        """The first process is on its way."""
        super().forked(pid)
        self.their_control.close()
        self._watch(self._control.fileno(), self._on_nursery)

    def abandon(self) -> None:
        """Nothing was forked after all."""
        super().abandon()
        self._control.close()
        self.their_control.close()

    def admit(self, ward: HatchedWard) -> int:
        """Ask for a shell for `ward`; its number here."""
        number = next(self._numbers)
        self._wards[number] = ward
        request = {
            "shell": number,
            "disk": ward.spec.limits.disk,
            "uid": number % GUEST_UIDS + 1,
            "counted": ward.cgroup is not None,
        }
        packets.send(self._control, request, [ward.their_status.fileno()])
        return number

    def hatch(self, ward: HatchedWard) -> None:
        """The shell is built: ask for the guest, now or when there is a zygote."""
        if self._zygote is None or not self._warm:
            self._waiting.append(ward)
            return
        try:
            packets.send(self._zygote, ward.hatch_request(), ward.hatch_fds())
        except BlockingIOError:
            self._waiting.append(ward)
        except OSError:
            ward.zygote_lost()
        else:
            ward.hatching = True

    def forget(self, ward: HatchedWard) -> None:
        """It is over."""
        self._wards.pop(ward.number, None)
        for pid in ward.nursery_pids:
            self._by_pid.pop(pid, None)
        if ward in self._waiting:
            self._waiting.remove(ward)
        if self._retired:
            self.retire()

    def retire(self) -> None:
        """End with the last guest; guests that were given up while it stood still do not count."""
        self._retired = True
        if all(ward.told for ward in self._wards.values()):
            self.kill()

    def _built(self) -> None:
        """Not yet of use: the zygote says when it is warm."""

    def _on_nursery(self) -> None:
        data, fds = _receive(self._control)
        if not data:
            self._unwatch(self._control.fileno())
            return
        message = json.loads(data)
        if "shell" in message:
            self._adopt(message["shell"], message["pid"], fds, HatchedWard.shell_born)
        elif "reaped" in message:
            self._reaped_pids(message["reaped"])
        elif "zygote" in message:
            self._meet_zygote(fds[0])
        elif "fatal" in message:
            self.fail(message["fatal"])
            self.kill()

    def _meet_zygote(self, fd: int) -> None:
        self._lose_zygote()
        self._zygote = socket.socket(fileno=fd)
        self._zygote.setblocking(False)
        self._watch(fd, self._on_zygote)

    def _on_zygote(self) -> None:
        assert self._zygote is not None
        data, fds = _receive(self._zygote)
        if not data:
            self._lose_zygote()
            return
        message = json.loads(data)
        if "ready" in message:
            self._warm = True
            with contextlib.suppress(OSError):  # its end, if it is that, is seen elsewhere
                packets.send(self._control, {"warm": True})
            self.tell("started", zygote=message["ready"])
            self._hatch_waiting()
        elif "hatched" in message:
            self._adopt(message["hatched"], message["pid"], fds, HatchedWard.guest_born)
            self._hatch_waiting()
        elif "reaped" in message:
            self._reaped_pids(message["reaped"])

    def _hatch_waiting(self) -> None:
        """There is a zygote, or room again in its socket."""
        waiting, self._waiting = self._waiting, []
        for ward in waiting:
            self.hatch(ward)

    def _lose_zygote(self) -> None:
        if self._zygote is None:
            return
        self._unwatch(self._zygote.fileno())
        self._zygote.close()
        self._zygote, self._warm = None, False
        for ward in list(self._wards.values()):
            if ward.hatching:
                ward.zygote_lost()

    def _adopt(
        self, number: int, pid: int, fds: list[int], born: Callable[[HatchedWard, int, int], None]
    ) -> None:
        ward = self._wards.get(number)
        if ward is None or not fds:
            for fd in fds:
                os.close(fd)
            return
        self._by_pid[pid] = ward
        born(ward, pid, fds[0])

    def _reaped_pids(self, ends: list[list[int]]) -> None:
        for pid, status in ends:
            ward = self._by_pid.pop(pid, None)
            if ward is not None:
                ward.ended(pid, status)

    def end_reason(self, otherwise: str = "nursery: it was ended") -> str:
        """Why no guest can come from here any more."""
        return self._failure or otherwise

    def _release(self) -> None:
        """Also if it never came to be: who waits for it must not wait for ever."""
        super()._release()
        for ward in list(self._wards.values()):
            ward.nursery_lost()
        self._unwatch(self._control.fileno())
        self._control.close()
        self._lose_zygote()


class HatchedWard(Ward):
    """A guest forked off a zygote, in a jail of its own."""

    def __init__(
        self,
        spec: HatchSpec,
        lease: socket.socket,
        *,
        group: Cgroup | None,
        selector: selectors.BaseSelector,
        nursery: NurseryWard,
        guest_fds: list[int],
    ) -> None:
        super().__init__(spec.limits, lease, group, selector)
        self.spec, self._nursery = spec, nursery
        self._jail = self.house = House(self.roots, self._signal_all)
        self._jail.tenants.add(self)
        self._jail.binds = nursery.binds
        self.hatching = self._entered = False
        self.number = 0
        self._init = self._guest = 0
        self._init_fd: int | None = None
        self._guest_fd: int | None = None
        self._namespaces: list[int] = []
        self._groups: list[int] = []
        self._guest_fds = [os.dup(fd) for fd in guest_fds]
        self._status, self.their_status = packets.pair()
        self._status.setblocking(False)

    @property
    def nursery_pids(self) -> tuple[int, int]:
        """Its two processes by their numbers in the nursery."""
        return self._init, self._guest

    def start(self) -> None:
        """Ask for the shell; the rest follows."""
        self._watch(self._status.fileno(), self._hear)
        self._watch(self.lease.fileno(), self._on_command)
        try:
            self.number = self._nursery.admit(self)
        except OSError:
            self.nursery_lost()

    def hatch_request(self) -> dict[str, Any]:
        """What the zygote is asked."""
        limits = self.spec.limits
        return {
            "hatch": self.number,
            "limits": {name: getattr(limits, name) for name in limits.__slots__},
            "groups": len(self._groups),
        }

    def hatch_fds(self) -> list[int]:
        """What goes with it: the status socket, the shell, its groups, the guest's own."""
        return [self.their_status.fileno(), *self._namespaces, *self._groups, *self._guest_fds]

    def shell_born(self, pid: int, pidfd: int) -> None:
        """The jail's first process is there; it says itself when all is built."""
        self._init, self._init_fd = pid, pidfd
        self._watch(pidfd, self._on_shell_end)
        if self._killed:
            self._signal_all()

    def guest_born(self, pid: int, pidfd: int) -> None:
        """The guest has been forked; it says itself when it is in its jail."""
        self.hatching = False
        self._guest, self._guest_fd = pid, pidfd
        self._close_given()
        self._start_if_whole()

    def ended(self, pid: int, status: int) -> None:
        """One of the two processes was reaped; the guest's status is the one that counts."""
        if pid == self._guest:
            self._wait_status = status
            self.leave()

    def zygote_lost(self) -> None:
        """It died between the request and the answer: nobody knows whether a guest was forked."""
        self.hatching = False
        self.fail("zygote: it was ended while it forked this guest")
        self.kill()

    def nursery_lost(self) -> None:
        """All is gone with it."""
        if self._guest_fd is None:
            self.fail(self._nursery.end_reason())
        self._reaped = True

    def guest_pid(self) -> int:
        """The guest's own process."""
        return 0 if self._guest_fd is None else max(0, _pid_of(self._guest_fd))

    def roots(self) -> list[int]:
        """Both processes, by their numbers here."""
        fds = [fd for fd in (self._init_fd, self._guest_fd) if fd is not None]
        return [pid for pid in map(_pid_of, fds) if pid > 0]

    def _hear(self) -> None:
        """Read what the new processes report."""
        self._hear_more()

    def _hear_more(self) -> bool:
        """Read one report; whether there may be another."""
        data, fds = _receive(self._status)
        message = json.loads(data or b'{"end": true}')
        if "built" in message:
            self._namespaces = fds
            self._groups = self.cgroup.open() if self.cgroup else []
            self._nursery.hatch(self)
        elif "entered" in message:
            for fd in fds:
                self._jail.listen(fd, self._selector)
            self._entered = True
            self._start_if_whole()
        elif "error" in message:
            self.fail(message["error"])
            self.kill()
            self._reaped = self._init_fd is None  # it was never forked, or ends by itself
        elif "end" in message:
            self._unwatch(self._status.fileno())
        return bool(message) and "end" not in message

    def _start_if_whole(self) -> None:
        """Not before the zygote has told of it: if it is killed just then, so is the guest."""
        if self._entered and self._guest_fd is not None:
            self._started()

    def _on_shell_end(self) -> None:
        assert self._init_fd is not None
        self._unwatch(self._init_fd)
        while self._hear_more():
            pass  # its last words may still be there
        if self._guest_fd is None and not self._killed:
            self.fail(self._nursery.end_reason("shell: it was ended"))
        self._reaped = True

    def _signal_guest(self) -> None:
        _send_signal(self._guest_fd, signal.SIGINT)

    def _signal_all(self) -> None:
        _send_signal(self._init_fd, signal.SIGKILL)

    def _close_given(self) -> None:
        """The guest has them now."""
        for fd in (*self._guest_fds, *self._groups, *self._namespaces):
            os.close(fd)
        self._guest_fds, self._groups, self._namespaces = [], [], []
        self.their_status.close()

    def _release(self) -> None:
        self._nursery.forget(self)
        self._close_given()
        self._jail.close()
        self._unwatch(self._status.fileno())
        self._status.close()
        fds, self._init_fd, self._guest_fd = (self._init_fd, self._guest_fd), None, None
        for fd in fds:
            if fd is not None:
                self._unwatch(fd)
                os.close(fd)


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """The next packet; none at the end, and an empty object if there is nothing after all."""
    try:
        return packets.receive(sock)
    except BlockingIOError:
        return b"{}", []
    except OSError:
        return b"", []


def _send_signal(pidfd: int | None, number: signal.Signals) -> None:
    if pidfd is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(pidfd, number)


def _pid_of(pidfd: int) -> int:
    """The process behind a pidfd, as numbered here; 0 or less if it is gone."""
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("Pid:")), 0)
