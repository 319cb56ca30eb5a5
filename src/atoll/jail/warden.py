"""The warden: a small trusted process that forks jails for one host process and watches over them.

    host ──control socket──▶ warden ──▶ ward (a jail)
      └──── one lease socket a ward ──▶   "interrupt", "kill", "usage"; its end means kill

Single-threaded, so forking is safe; free of secrets, as it is started with no environment. When
the host dies, every lease ends with it, so nothing outlives it: no process, no control group.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import selectors
import signal
import socket
import stat
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

from atoll.jail import cgroup, init, nursery, packets, seccomp, steps, syscalls, users
from atoll.jail.branch import BranchWard
from atoll.jail.brood import HatchedWard, NurseryWard
from atoll.jail.house import namespace_of
from atoll.jail.jailed import JailedWard
from atoll.jail.spec import SHOWN_FOLDERS, JailSpec, NurserySpec, from_json
from atoll.jail.ward import Ward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.jail.spec import HatchSpec, Limits, Spec

METER_SECONDS = 0.1
LEAVING_SECONDS = 0.005
JUST_THE_GUEST = 1
"""Pid 1 of its jail is in no control group of a guest that was forked."""


def main(control_fd: int) -> NoReturn:
    """Serve the host on the other end of `control_fd` until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a jail takes four
    warden = Warden(socket.socket(fileno=control_fd))
    gc.freeze()  # a collection in a fork would write to, and so copy, the pages of every module
    warden.serve()
    sys.exit(0)


class Warden:
    """The event loop and its wards."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._on_request)
        # A fork of the host holds copies of its sockets, so their end is not the host's end.
        self._host = os.pidfd_open(os.getppid())
        self._selector.register(self._host, selectors.EVENT_READ, self._close)
        self._wards: set[Ward] = set()
        self._nurseries: dict[str, NurseryWard] = {}
        self._open = True
        self._may_switch = users.may_switch()
        seccomp.jail_program()  # assembled once, inherited by every fork
        self._groups: cgroup.Groups | None = None
        if found := cgroup.find():
            found.sweep()
            self._groups = cgroup.Groups(found)

    def serve(self) -> None:
        """Until the host is gone and the last ward with it."""
        while self._open or self._wards:
            for key, _ in self._selector.select(self._tick()):
                self._call(key)
            for ward in [ward for ward in self._wards if ward.due]:
                self._look_after(ward)
        if self._groups:
            self._groups.close()

    def _call(self, key: selectors.SelectorKey) -> None:
        """One sandbox's fault must not end the others: it is ended itself."""
        try:
            key.data()
        except Exception:  # noqa: BLE001 - whatever it is
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(key.fileobj)
            self._give_up(getattr(key.data, "__self__", None))

    def _look_after(self, ward: Ward) -> None:
        """Do what time alone makes necessary; what fails is tried again in the next round."""
        try:
            ward.check_memory()
            over = ward.is_over()
        except Exception:  # noqa: BLE001 - a fault of one sandbox is not the others'
            self._give_up(ward)
            return
        if over:
            self._forget(ward)

    def _give_up(self, owner: object) -> None:
        traceback.print_exc()
        if isinstance(owner, Ward):
            owner.fail("warden: it failed to look after this sandbox")
            owner.kill()

    def _forget(self, ward: Ward) -> None:
        self._wards.discard(ward)
        ward.close()
        if self._groups and ward.cgroup is not None:
            self._groups.give_up(ward.cgroup)
        if isinstance(ward, NurseryWard):
            self._nurseries.pop(ward.name, None)

    def _tick(self) -> float | None:
        due = [ward for ward in self._wards if ward.due]
        if any(ward.leaving() for ward in due):
            return LEAVING_SECONDS
        needed = any(ward.needs_attention() for ward in due)
        return METER_SECONDS if needed else None

    def _on_request(self) -> None:
        try:
            data, fds = packets.receive(self._control)
        except packets.LostDescriptorsError:
            return  # the lease was among them: its end tells the host
        except BlockingIOError:
            return  # it is still there in the next round
        if not data:
            self._close()
            return
        if not fds:
            return
        lease = socket.socket(fileno=fds[0])
        try:
            self._admit(from_json(data), lease, fds[1:])
        except Exception:  # noqa: BLE001 - one bad request must not take the others down
            with contextlib.suppress(OSError):
                reason = f"admit: {traceback.format_exc()}"
                lease.send(json.dumps({"event": "failed", "reason": reason}).encode())
            lease.close()
        finally:
            for fd in fds[1:]:
                os.close(fd)

    def _close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._selector.unregister(self._control)
        self._selector.unregister(self._host)
        for ward in self._wards:
            ward.kill()

    def _admit(self, spec: Spec, lease: socket.socket, guest_fds: list[int]) -> None:
        if isinstance(spec, JailSpec):
            self._admit_jail(spec, lease, guest_fds)
        elif isinstance(spec, NurserySpec):
            self._admit_nursery(spec, lease)
        else:
            self._admit_hatch(spec, lease, guest_fds)

    def _admit_jail(self, spec: JailSpec, lease: socket.socket, guest_fds: list[int]) -> None:
        with contextlib.ExitStack() as undo:
            if group := self._new_group(spec.limits):
                undo.callback(group.remove)
            ward = JailedWard(spec, lease, group, self._selector)
            undo.callback(ward.abandon)
            jail = steps.Jail(
                limits=spec.limits,
                binds=spec.binds,
                host_uid=users.pick_host_uid() if self._may_switch and spec.jailed else None,
                folder=steps.folder_of(spec, ward.private_folder),
                jailed=spec.jailed,
                workspace=spec.workspace,
                cgroup=group,
                counted=group is not None,
            )
            pid = os.fork()
            if pid == 0:
                _become_jail(spec, jail, guest_fds, ward.status_write, ward.lifeline_read)
            undo.pop_all()
        ward.forked(pid)
        self._add(ward)

    def _admit_nursery(self, spec: NurserySpec, lease: socket.socket) -> None:
        with contextlib.ExitStack() as undo:
            ward = NurseryWard(spec, lease, self._selector)
            undo.callback(ward.abandon)
            pid = os.fork()
            if pid == 0:
                control, status = ward.their_control, ward.status_write
                _become_nursery(
                    spec,
                    control,
                    status,
                    switches=self._may_switch,
                    counted=self._groups is not None,
                )
            undo.pop_all()
        ward.forked(pid)
        self._wards.add(ward)
        self._nurseries[spec.name] = ward

    def _admit_hatch(self, spec: HatchSpec, lease: socket.socket, guest_fds: list[int]) -> None:
        home = self._nurseries.get(spec.nursery)
        if home is None:
            with lease:
                reason = "nursery: it has ended"
                lease.send(json.dumps({"event": "failed", "reason": reason}).encode())
            return
        with contextlib.ExitStack() as undo:
            if group := self._new_group(spec.limits, JUST_THE_GUEST):
                undo.callback(group.remove)
            ward = HatchedWard(
                spec,
                lease,
                group=group,
                selector=self._selector,
                nursery=home,
                guest_fds=guest_fds,
            )
            undo.pop_all()
        self._add(ward)
        ward.start()

    def _admit_branch(self, origin: Ward, lease: socket.socket, status: socket.socket) -> None:
        origin.mount_namespace = origin.mount_namespace or namespace_of(origin.guest_pid())
        group = self._new_group(origin.limits, JUST_THE_GUEST) if origin.limits else None
        self._add(BranchWard(origin, lease, status, group=group, selector=self._selector))

    def _add(self, ward: Ward) -> None:
        ward.admit_branch = self._admit_branch
        ward.give_back = self._groups.give_back if self._groups else None
        self._wards.add(ward)

    def _new_group(
        self, limits: Limits, runtime: int = cgroup.RUNTIME_PROCESSES
    ) -> cgroup.Cgroup | None:
        """None where there are no groups: rlimits and the meter hold instead."""
        return None if self._groups is None else self._groups.take(limits, runtime)


def _become_jail(
    spec: JailSpec, jail: steps.Jail, guest_fds: list[int], status: int, lifeline: int
) -> NoReturn:
    """Process A, and (in a jail) B: never returns to the warden's loop."""
    gc.disable()  # it lives until the guest's interpreter is executed, or only reaps
    try:
        _drop_inherited({*guest_fds, status, lifeline})
        if jail.jailed:
            _become_init(spec, jail, guest_fds, status, lifeline)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        init.report(status, f"pid {os.getpid()}")
        steps.take(steps.CONFINED, jail)
        _report_built(status, jail, [jail.folder])
        init.execute(spec, guest_fds, status, folder=jail.folder)
    except steps.StepError as exc:
        init.report(status, f"error {exc}")
    except BaseException:  # noqa: BLE001 - nothing may unwind into the warden's loop
        init.report(status, f"error {traceback.format_exc()}")
    os._exit(1)


def _become_nursery(
    spec: NurserySpec, control: socket.socket, status: int, *, switches: bool, counted: bool
) -> NoReturn:
    try:
        _drop_inherited({control.fileno(), status})
        nursery.become(spec, control, status, switches=switches, counted=counted)
    except BaseException as exc:  # noqa: BLE001 - nothing may unwind into the warden's loop
        init.report(status, f"error nursery: {type(exc).__name__}: {exc}")
    os._exit(1)


def _become_init(
    spec: JailSpec, jail: steps.Jail, guest_fds: list[int], status: int, lifeline: int
) -> NoReturn:
    steps.take(steps.OUTER, jail)
    if jail.host_uid is not None:
        _hand_over(guest_fds, jail.host_uid)
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid:
        init.report(status, f"pid {pid}")
        cgroup.admit(jail.cgroup_fds, pid)
        os.write(go_write, b"x")
        os._exit(0)
    os.close(go_write)
    for fd in jail.cgroup_fds:
        os.close(fd)
    steps.take(steps.INNER, jail)
    if not os.read(go_read, 1):
        os._exit(1)  # the other process says why
    os.close(go_read)
    _report_built(status, jail, SHOWN_FOLDERS)
    init.run(spec, guest_fds, status, lifeline)


def _report_built(status: int, jail: steps.Jail, folders: Sequence[str]) -> None:
    """Folders first: once it is built, the host may ask for them."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    init.report(status, "folders", [os.open(folder, flags) for folder in folders])
    init.report(status, "built", [] if jail.listener is None else [jail.listener])


def _hand_over(fds: list[int], owner: int) -> None:
    """Pipes become the guest's, so that it can open /dev/stdout and /dev/stderr by name.

    SECURITY: nothing but a pipe; a file of the host's keeps its owner.
    """
    for fd in fds:
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.fchown(fd, owner, owner)


def _drop_inherited(keep: set[int]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    syscalls.close_all_but({0, 1, 2, *keep})
    signal.signal(signal.SIGINT, signal.SIG_DFL)
