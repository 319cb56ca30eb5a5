"""The supervisor: a small trusted process that forks and watches the jails of one host process.

    host ──control socket──▶ supervisor ──▶ jails
      └──── one lease socket a jail ──▶   "interrupt", "kill", "usage"; its end means kill

It is single-threaded, so forking is safe, and it is started without environment variables, so it
holds no secrets. When the host dies, every lease closes: no process and no control group outlives
the host.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import selectors
import signal
import socket
import stat
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from atoll.jail.measure import cgroup
from atoll.jail.supervisor import packets
from atoll.jail.supervisor.jail_record import JailRecord, refuse
from atoll.jail.supervisor.shared_jail import namespace_of
from atoll.jail.supervisor.spec import (
    GUEST,
    SHOWN_FOLDERS,
    JailSpec,
    ZygoteHostSpec,
    requested,
)
from atoll.jail.supervisor.started_jail import ColdJailRecord
from atoll.jail.supervisor.zygote_host_record import ZygoteHostRecord
from atoll.jail.walls import container, init, root, seccomp, steps, syscalls, users
from atoll.jail.walls.joined import Entrance
from atoll.jail.zygote import zygote_host
from atoll.jail.zygote.clone import CloneRecord
from atoll.jail.zygote.forked_guest import ForkedGuestRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.jail.supervisor.spec import ForkSpec, Limits, Spec

METER_SECONDS = 0.1
LEAVING_SECONDS = 0.005
STUCK_SECONDS = 1.0
"""Between attempts to remove a control group that processes would not leave in time."""
MAX_REASON = 4000
BUILD_UMASK = 0o022
"""With the host's, such as 077, the guest's user could not enter the root that root builds."""
JUST_THE_GUEST = 1
"""Atoll's processes in a forked guest's control group: pid 1 of its jail is not in it."""


def main(control_fd: str) -> NoReturn:
    """Serve the host on the other end of `control_fd` until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a jail takes four
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:  # a guest of a host that goes before others does not
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    _load_all_of_traceback()
    umask = os.umask(BUILD_UMASK)
    supervisor = Supervisor(socket.socket(fileno=int(control_fd)), umask)
    gc.freeze()  # a collection in a fork would write to, and so copy, the pages of every module
    supervisor.serve()
    sys.exit(0)


def _load_all_of_traceback() -> None:
    """Format exceptions, with and without a hint: from Python 3.15 on, this imports modules.

    Later, no descriptor may be left to open a file, and the import that fails would take all
    sandboxes with it.
    """
    for fail in (lambda: sys.__getattribute__("nothing"), lambda: import_module("nothing.atoll")):
        try:
            fail()
        except (AttributeError, ImportError):
            traceback.format_exc()


class Supervisor:
    """The event loop and the records of its jails."""

    def __init__(self, control: socket.socket, umask: int = BUILD_UMASK) -> None:
        self._control, self._umask = control, umask
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._on_request)
        # A fork of the host holds copies of its sockets, so their end is not the host's end.
        self._host = os.pidfd_open(os.getppid())
        self._selector.register(self._host, selectors.EVENT_READ, self._close)
        self._records: set[JailRecord] = set()
        self._zygote_hosts: dict[str, ZygoteHostRecord] = {}
        self._open = True
        self._may_switch = users.may_switch()
        seccomp.jail_program(user=GUEST)  # assembled once, inherited by every fork
        root.proc_covers()
        self._groups: cgroup.Groups | None = None
        if hierarchies := cgroup.find():
            hierarchies.sweep()
            self._groups = cgroup.Groups(hierarchies)

    def serve(self) -> None:
        """Serve until the host is gone and the last jail has ended."""
        while self._open or self._records:
            self._carry_out(self._selector.select(self._tick()))
            for record in [record for record in self._records if record.due]:
                self._check(record)
            if self._groups:
                self._groups.remove_stuck()
        if self._groups:
            self._groups.close()

    def _carry_out(self, events: list[tuple[selectors.SelectorKey, int]]) -> None:
        """Run the callbacks of one moment; a fault ends only the sandbox that it belongs to.

        A callback may close the descriptor of a later event, and the number be another's by then.
        """
        watched = self._selector.get_map()
        for key, _ in events:
            if watched.get(key.fd) is not key:
                continue
            try:
                key.data()
            except Exception:  # noqa: BLE001 - any fault
                if watched.get(key.fd) is key:
                    self._selector.unregister(key.fd)
                self._give_up(getattr(key.data, "__self__", None))

    def _check(self, record: JailRecord) -> None:
        """Check memory and the end of one sandbox; a failure ends only this sandbox."""
        try:
            record.check_memory()
            if record.is_over():
                self._forget(record)
        except Exception:  # noqa: BLE001 - a fault of one sandbox is not the others'
            self._give_up(record)

    def _give_up(self, owner: object) -> None:
        traceback.print_exc()
        if isinstance(owner, JailRecord):
            owner.fail("supervisor: it failed to check this sandbox")
            owner.kill()

    def _forget(self, record: JailRecord) -> None:
        self._records.discard(record)
        record.close()
        if self._groups and record.cgroup is not None:
            self._groups.give_up(record.cgroup)
        if isinstance(record, ZygoteHostRecord):
            self._zygote_hosts.pop(record.name, None)

    def _tick(self) -> float | None:
        due = [record for record in self._records if record.due]
        if any(record.leaving() for record in due):
            return LEAVING_SECONDS
        if any(record.needs_attention() for record in due):
            return METER_SECONDS
        return STUCK_SECONDS if self._groups and self._groups.stuck else None

    def _on_request(self) -> None:
        try:
            message = packets.receive(self._control)
        except packets.LostDescriptorsError:
            return  # the lease was among them: the host sees it closed
        except BlockingIOError:
            return  # the packet is still there in the next round
        if message is None:
            self._close()
            return
        if not message.fds:
            return
        lease, guest_fds = packets.end(message.fds[0]), message.fds[1:]
        try:
            self._admit(requested(message.kind, message.fields), lease, guest_fds)
        except steps.StepError as exc:
            refuse(lease, str(exc))
        except Exception:  # noqa: BLE001 - one bad request must not take the others down
            refuse(lease, f"admit: {traceback.format_exc()}")
        finally:
            packets.close_all(guest_fds)

    def _close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._selector.unregister(self._control)
        self._selector.unregister(self._host)
        for record in self._records:
            record.kill()

    def _admit(self, spec: Spec, lease: socket.socket, guest_fds: list[int]) -> None:
        if isinstance(spec, JailSpec):
            self._admit_jail(spec, lease, guest_fds)
        elif isinstance(spec, ZygoteHostSpec):
            self._admit_zygote_host(spec, lease)
        else:
            self._admit_fork(spec, lease, guest_fds)

    def _admit_jail(self, spec: JailSpec, lease: socket.socket, guest_fds: list[int]) -> None:
        with contextlib.ExitStack() as undo:
            group = self._new_group(spec.limits, undo=undo)
            record = ColdJailRecord(spec, lease, group, self._selector)
            undo.callback(record.abandon)
            jail = steps.Jail(
                limits=spec.limits,
                binds=spec.binds,
                host_uid=users.pick_host_uid() if self._may_switch and spec.jailed else None,
                folder=steps.folder_of(spec, record.private_folder),
                jailed=spec.jailed,
                workspace=spec.workspace,
                container=spec.container,
                image=spec.root,
                user=spec.root.user if spec.root else GUEST,
                cgroup_fds=list(group.entrances) if group else [],
                caller=(os.geteuid(), os.getegid()),
                umask=self._umask,
                counted=group is not None,
            )
            pid = _fork(jail, group)
            if pid == 0:
                _become_jail(spec, jail, guest_fds, record.status_write, record.lifeline_read)
            undo.pop_all()
        record.jail = jail
        record.forked(pid)
        self._add(record)

    def _admit_zygote_host(self, spec: ZygoteHostSpec, lease: socket.socket) -> None:
        with contextlib.ExitStack() as undo:
            record = ZygoteHostRecord(spec, lease, self._selector)
            undo.callback(record.abandon)
            pid = os.fork()
            if pid == 0:
                control, status = record.their_control, record.status_write
                _become_zygote_host(
                    spec, control, status, switches=self._may_switch, groups=self._groups
                )
            undo.pop_all()
        record.forked(pid)
        self._records.add(record)
        self._zygote_hosts[spec.name] = record

    def _admit_fork(self, spec: ForkSpec, lease: socket.socket, guest_fds: list[int]) -> None:
        home = self._zygote_hosts.get(spec.zygote_host)
        if home is None:
            refuse(lease, "zygote host: it has ended")
            return
        with contextlib.ExitStack() as undo:
            group = self._new_group(spec.limits, JUST_THE_GUEST, undo=undo)
            record = ForkedGuestRecord(
                spec,
                lease,
                group=group,
                selector=self._selector,
                zygote_host=home,
                guest_fds=guest_fds.copy(),
            )
            guest_fds.clear()  # they are the record's now
            undo.pop_all()
        self._add(record)
        record.start()

    def _admit_clone(self, origin: JailRecord, lease: socket.socket, status: socket.socket) -> None:
        origin.mount_namespace = origin.mount_namespace or namespace_of(origin.guest_pid())
        with contextlib.ExitStack() as undo:
            limits = origin.limits
            group = self._new_group(limits, JUST_THE_GUEST, undo=undo) if limits else None
            record = CloneRecord(origin, lease, status, group=group, selector=self._selector)
            undo.pop_all()
        self._add(record)

    def _add(self, record: JailRecord) -> None:
        record.admit_clone = self._admit_clone
        record.give_back = self._groups.give_back if self._groups else None
        self._records.add(record)

    def _new_group(
        self, limits: Limits, runtime: int = cgroup.RUNTIME_PROCESSES, *, undo: contextlib.ExitStack
    ) -> cgroup.Cgroup | None:
        """Return a control group; None where there are none, and rlimits and the meter apply."""
        group = None if self._groups is None else self._groups.take(limits, runtime)
        if self._groups is not None and group is not None:
            undo.callback(self._groups.give_up, group)
        return group


def _fork(jail: steps.Jail, group: cgroup.Cgroup | None) -> int:
    """Fork the first process of a jail, in version 2 straight into its control group.

    A process that enters such a group later waits for milliseconds: see Cgroup.open.
    """
    namespaces = steps.namespaces(jail)
    if group is not None and group.version == 2:
        entrances, jail.cgroup_fds = jail.cgroup_fds, []
        folder = os.open(group.folders["memory"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return syscalls.fork(namespaces, folder)
        except OSError:  # a filter around us may not know clone3
            jail.cgroup_fds = entrances
        finally:
            os.close(folder)
    try:
        return syscalls.fork(namespaces)
    except OSError as exc:
        raise steps.StepError("fork", exc) from exc


def _become_jail(
    spec: JailSpec, jail: steps.Jail, guest_fds: list[int], status: int, lifeline: int
) -> NoReturn:
    """Build the jail, or confine this process; never return to the supervisor's loop."""
    gc.disable()  # short-lived, or only reaps
    try:
        _drop_inherited({*guest_fds, *jail.cgroup_fds, status, lifeline})
        syscalls.prefer_to_end(syscalls.GUEST_ENDS)
        if jail.jailed:
            _become_init(spec, jail, guest_fds, status, lifeline)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        steps.take(steps.CONFINED if spec.must_confine else steps.GUARDED, jail)
        _report_built(status, jail, [jail.folder])
        init.execute(spec, guest_fds, status, folder=jail.folder)
    except steps.StepError as exc:
        init.report(status, "error", reason=str(exc))
    except BaseException:  # noqa: BLE001 - nothing may unwind into the supervisor's loop
        init.report(status, "error", reason=traceback.format_exc()[-MAX_REASON:])
    os._exit(1)


def _become_zygote_host(
    spec: ZygoteHostSpec,
    control: socket.socket,
    status: int,
    *,
    switches: bool,
    groups: cgroup.Groups | None,
) -> NoReturn:
    try:
        _drop_inherited({control.fileno(), status})
        syscalls.prefer_to_end(syscalls.ZYGOTE_ENDS)
        zygote_host.become(spec, control, status, switches=switches, groups=groups)
    except BaseException as exc:  # noqa: BLE001 - nothing may unwind into the supervisor's loop
        reason = f"zygote host: {type(exc).__name__}: {exc}"
        init.report(status, "error", reason=reason[:MAX_REASON])
    os._exit(1)


def _become_init(
    spec: JailSpec, jail: steps.Jail, guest_fds: list[int], status: int, lifeline: int
) -> NoReturn:
    if jail.host_uid is not None:
        _hand_over(guest_fds, jail.host_uid)
    walls = steps.STARTED if jail.container is None else steps.CONTAINER
    if spec.filtered_late:  # see init: until then only our own code runs
        walls = tuple(step for step in walls if step is not steps.filter_calls)
    steps.take(walls, jail)
    below = "" if jail.container is None else container.GUEST_ROOT
    # Opened here, as a supervisor that is not root may not open them of a process in a jail.
    entrance = Entrance.of("self").descriptors() if jail.container is None else ()
    shown = (*SHOWN_FOLDERS, *jail.limits.folders)
    _report_built(status, jail, [below + folder for folder in shown], entrance)
    init.run(spec, guest_fds, status, lifeline)


def _report_built(
    status: int, jail: steps.Jail, folders: Sequence[str], entrance: Sequence[int] = ()
) -> None:
    """Report that the jail is built: its folders, the way into it, its notifications.

    The last folder is the upper layer of an image's writable root, if it has one.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    shown = [os.open(folder, flags) for folder in folders]
    shown += [] if jail.upper_fd is None else [jail.upper_fd]
    fds = [*shown, *entrance, *([] if jail.listener is None else [jail.listener])]
    init.report(status, "built", fds, folders=len(shown), entrance=len(entrance))


def _hand_over(fds: list[int], owner: int) -> None:
    """Make the guest the owner of its pipes, so that it can open /dev/stdout and /dev/stderr.

    SECURITY: only pipes; a file of the host keeps its owner.
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
