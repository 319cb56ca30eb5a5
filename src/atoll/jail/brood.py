"""A nursery as the warden sees it, and the guests that are forked off its zygote.

    warden ── "fork" ──▶ zygote ──fork──▶ guest: builds its jail, "entered" ──▶ warden
      ▲                     │
      └────── "ended" ──────┘  (from the nursery if the zygote has ended before its guest)

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

    from atoll.jail.cgroup import Cgroup
    from atoll.jail.spec import HatchSpec, NurserySpec


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
        """Take a guest that is to be forked; its number here."""
        number = next(self._numbers)
        self._wards[number] = ward
        return number

    def hatch(self, ward: HatchedWard) -> None:
        """Ask for the guest, now or when there is a zygote."""
        if self._zygote is None or not self._warm:
            self._waiting.append(ward)
            return
        try:
            packets.send(self._zygote, ward.request(), ward.given())
        except BlockingIOError:
            self._waiting.append(ward)
        except OSError:
            ward.zygote_lost()
        else:
            ward.sent()

    def forget(self, ward: HatchedWard) -> None:
        """It is over."""
        self._wards.pop(ward.number, None)
        self._by_pid.pop(ward.nursery_pid, None)
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
        if "reaped" in message:
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
        else:
            self._on_guest(message, fds)
            self._hatch_waiting()

    def _on_guest(self, message: dict[str, Any], fds: list[int]) -> None:
        """What a child of the zygote says of itself, or the zygote of it."""
        ward = self._wards.get(message.get("entered") or message.get("ended") or message["number"])
        if ward is None:
            close_all(fds)
        elif "entered" in message:
            self._by_pid[message["pid"]] = ward
            ward.entered(message["pid"], fds)
        elif "ended" in message:
            ward.ended(message["status"], *fds)
        else:
            ward.failed(message["error"])

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

    def _reaped_pids(self, ends: list[list[int]]) -> None:
        for pid, status in ends:
            ward = self._by_pid.pop(pid, None)
            if ward is not None:
                ward.ended(status)

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
        self.hatching = self._lost = False
        self.number = self.nursery_pid = 0
        self._init_fd: int | None = None
        self._guest_fd: int | None = None
        self._guest_fds = [os.dup(fd) for fd in guest_fds]

    def start(self) -> None:
        """Ask for the guest; the rest follows."""
        self._watch(self.lease.fileno(), self._on_command)
        self.number = self._nursery.admit(self)
        self._nursery.hatch(self)

    def request(self) -> dict[str, Any]:
        """What the zygote is asked.

        Where a control group counts processes it does so for each live clone apart; the limit of
        a process's user would count them together.
        """
        limits = {name: getattr(self.spec.limits, name) for name in self.spec.limits.__slots__}
        if self.cgroup is not None:
            limits["processes"] = None
        return {
            "fork": self.number,
            "limits": limits,
            "groups": len(self.cgroup.entrances) if self.cgroup else 0,
        }

    def given(self) -> list[int]:
        """The descriptors that go with it: control groups, and the guest's own."""
        return [*(self.cgroup.entrances if self.cgroup else ()), *self._guest_fds]

    def sent(self) -> None:
        """The zygote has the request, and what goes with it."""
        self.hatching = True
        self._close_given()

    def entered(self, pid: int, fds: list[int]) -> None:
        """The guest is in its jail. `pid` is its number in the nursery."""
        self.hatching, self.nursery_pid = False, pid
        self._init_fd, self._guest_fd, *listener = fds
        self._watch(self._init_fd, self._on_init_end)
        for fd in listener:
            self._jail.listen(fd, self._selector)
        if self._gone:
            self._signal_all()
        else:
            self._started()

    def ended(self, status: int, init: int | None = None) -> None:
        """The guest has ended: with it the jail, unless clones live there.

        One that ended before it had entered has left a jail that was not known here: `init`.
        """
        self._wait_status = status
        if self._init_fd is None and init is not None:
            self.hatching = False
            self.fail("hatch: it was ended while it entered its jail")
            self._init_fd = init
            self._watch(init, self._on_init_end)
            self._gone = True
            self._signal_all()
            return
        if init is not None:
            os.close(init)
        self.leave()

    def failed(self, reason: str) -> None:
        """There is no guest, or there will be none in a moment: `ended` tells then."""
        self.fail(reason)
        if reason.startswith("fork: "):
            self.hatching = False
            self.all_gone()

    def zygote_lost(self) -> None:
        """It died between the request and the answer. A child that it had cannot answer any more.

        Such a child is killed by its control group; without one, the host's end of its channel
        ends it. The nursery ends its jail.
        """
        self.hatching, self._lost = False, True
        self.fail("zygote: it was ended while it forked this guest")
        self.all_gone()

    def _left_group(self) -> bool:
        if self._lost and self.cgroup is not None:
            self.cgroup.emptied()
        return super()._left_group()

    def nursery_lost(self) -> None:
        """All is gone with it."""
        if self._guest_fd is None:
            self.fail(self._nursery.end_reason())
        self.all_gone()

    def leave(self) -> None:
        """Be gone; one that nobody has been asked for yet is gone at once."""
        super().leave()
        if not self.hatching and self._init_fd is None:
            self.all_gone()

    def guest_pid(self) -> int:
        """The guest's own process."""
        return 0 if self._guest_fd is None else max(0, _pid_of(self._guest_fd))

    def roots(self) -> list[int]:
        """Pid 1 of the jail and the guest, by their numbers here."""
        fds = [fd for fd in (self._init_fd, self._guest_fd) if fd is not None]
        return [pid for pid in map(_pid_of, fds) if pid > 0]

    def _on_init_end(self) -> None:
        assert self._init_fd is not None
        self._unwatch(self._init_fd)
        self.all_gone()

    def _signal_guest(self) -> None:
        _send_signal(self._guest_fd, signal.SIGINT)

    def _signal_all(self) -> None:
        _send_signal(self._init_fd, signal.SIGKILL)

    def _close_given(self) -> None:
        close_all(self._guest_fds)
        self._guest_fds = []

    def _release(self) -> None:
        self._nursery.forget(self)
        self._close_given()
        self._jail.close()
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


def close_all(fds: list[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
