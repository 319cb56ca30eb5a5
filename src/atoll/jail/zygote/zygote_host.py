"""Pid 1 of the zygote host: keeps a zygote alive and builds empty jails for its guests.

    supervisor ──▶ zygote host ──clone──▶ pid 1 of an empty jail, asleep
                  │ a few pidfds, and one more for each that was taken
                  ▼
               zygote ──fork──▶ guest, in that jail

It ends with the supervisor, and its guests with it. SECURITY: it is root only in a user namespace
of its own, with the root file system that its guests share. Neither it nor the zygote runs guest
code: a guest is a fork. Pid 1 of a jail has the zygote host's capabilities but only sleeps; a guest
is another user in another user namespace, so it cannot see, signal or trace it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enums of all it returns
import contextlib
import itertools
import os
import select
import signal
import time
from typing import TYPE_CHECKING, NoReturn

from atoll.jail.measure import meter
from atoll.jail.supervisor import packets
from atoll.jail.supervisor.spec import NO_LIMITS
from atoll.jail.walls import init, root, seccomp, steps, syscalls, users

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence

    from atoll.jail.measure.cgroup import Groups
    from atoll.jail.supervisor.spec import ZygoteHostSpec

CONTROL_FD, INITS_FD = 3, 4
READY_INITS = 4
BIND_NOW = "LD_BIND_NOW"
"""Has the loader look up C functions when a zygote starts, not in each guest that calls them."""
GUEST_UIDS, IMAGE_UID = 65_000, 1
HASTE_SECONDS, MAX_FAST_STARTS = 5.0, 3
RETRY_MS = 500
"""The pause before a zygote is started again after fork or open failed."""


def become(
    spec: ZygoteHostSpec,
    control: socket.socket,
    status: int,
    *,
    switches: bool,
    groups: Groups | None,
) -> NoReturn:
    """Enter namespaces, fork pid 1 in them, report its pid to the supervisor, and exit.

    `switches`: each guest gets a uid of its own. `groups`: control groups that limit guests.
    """
    counted, own_group = groups is not None, groups.open_own() if groups else None
    if switches:
        proc, first = os.open("/proc", os.O_PATH | os.O_DIRECTORY), users.pick_range()
        syscalls.unshare(syscalls.CLONE_NEWNS)
        root.build_zygote_host(spec.binds, first, spec.root, first + IMAGE_UID)
        users.enter_user_range(first, proc)
    else:
        users.enter_own_user_namespace(seen_as=0)
    own = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWCGROUP
    syscalls.unshare(own | steps.SHARED_NAMESPACES)
    steps.set_host_name()
    pid = os.fork()
    if pid:
        init.report(status, "pid", pid=pid)
        os._exit(0)
    if switches:
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
        syscalls.mount("proc", "/proc", "proc", flags)
    else:
        root.build_zygote_host(spec.binds, os.geteuid(), spec.root)
    if spec.root is not None:
        _lock_mounts(switches=switches)
    init.report(status, "built")
    os.close(status)
    ZygoteHost(spec, control, own_group, switches=switches, counted=counted).serve()


def _lock_mounts(*, switches: bool) -> None:
    """Enter a user namespace and copies of the others, in which the mounts cannot be changed.

    SECURITY: an image's interpreter is the zygote, with rights to mount. The kernel locks mounts
    that a more privileged user namespace made: none can be unmounted or made writable from here.
    """
    if switches:
        users.enter_user_range(0, os.open("/proc", os.O_PATH | os.O_DIRECTORY))
    else:
        users.enter_own_user_namespace(seen_as=0)
    syscalls.unshare(steps.SHARED_NAMESPACES)
    steps.set_host_name()


class ZygoteHost:
    """The event loop of pid 1."""

    def __init__(
        self,
        spec: ZygoteHostSpec,
        control: socket.socket,
        own_group: int | None,
        *,
        switches: bool,
        counted: bool,
    ) -> None:
        self._spec, self._control, self._own_group = spec, control, own_group
        self._uids: Iterator[int | None] = itertools.repeat(None)
        if switches and spec.root is not None:  # it owns the image's files, as in a container
            self._uids = itertools.repeat(IMAGE_UID)
        elif switches:
            self._uids = itertools.cycle(range(1, GUEST_UIDS))
        self._counted = counted
        self._home = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("mnt", "net")]
        self._wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        self._poll = select.poll()
        for fd in (self._wake, control.fileno()):
            self._poll.register(fd, select.POLLIN)
        self._zygote_fd = -1
        self._inits_socket: socket.socket | None = None
        self._generation = 0
        self._inits: dict[int, int] = {}
        """Pid 1 of each jail, and the generation of the zygote that it was started for."""
        self._starts: list[float] = []
        self._gave_up = False
        """Whether no zygote is started any more: guests that run are still reaped."""

    def serve(self) -> NoReturn:
        """Serve until the supervisor is gone; the kernel then kills the whole pid namespace."""
        self._start_zygote()
        while True:
            missing = self._zygote_fd < 0 and not self._gave_up
            ready = {fd for fd, _ in self._poll.poll(RETRY_MS if missing else None)}
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            if self._inits_socket is not None and self._inits_socket.fileno() in ready:
                self._on_taken(self._inits_socket)
            if missing or self._zygote_fd in ready:
                self._reap()
                self._start_zygote()
            if self._control.fileno() in ready:
                self._on_supervisor()

    def _on_supervisor(self) -> None:
        try:
            message = packets.receive(self._control)
        except BlockingIOError:
            return
        if message is None:
            os._exit(0)
        if message.kind == "move":
            self._wait_ahead()
            return
        self._starts.clear()  # the zygote is warm: one that has come so far ends for another reason

    def _wait_ahead(self) -> None:
        """Move this process into the control group that it is in.

        The supervisor is about to move a new clone. The kernel waits for an RCU grace period before
        it moves a process, but not if it has just moved one: so it waits while the clone starts.
        """
        if self._own_group is not None:
            with contextlib.suppress(OSError):
                os.write(self._own_group, b"0")

    def _on_taken(self, inits: socket.socket) -> None:
        """Build another empty jail; if the zygote has ended, only close the socket."""
        try:
            taken = packets.receive(inits)
        except BlockingIOError:
            return
        except ConnectionError:
            taken = None
        if taken:
            self._add_init(inits)
        else:
            self._poll.unregister(inits)
            inits.close()
            self._inits_socket = None

    def _add_init(self, inits: socket.socket) -> None:
        """Build an empty jail and send it to the zygote."""
        fds: list[int] = []
        uid, reason = None, None
        try:
            fds.append(self._start_init())
            uid = self._build(fds[0])
        except (OSError, steps.StepError) as exc:
            reason = str(exc)
            end_jails(fds)
        try:
            packets.send(inits, "jail", fds, uid=uid, error=reason)
        except OSError:  # the zygote has just ended, or its socket is full
            end_jails(fds)
        packets.close_all(fds)

    def _build(self, init: int) -> int | None:
        """Run the steps of an empty jail; return the uid that it is for.

        Here they cost a tenth of what they cost in a guest, which would copy the pages of the code.
        """
        uid = next(self._uids)
        jail = steps.Jail(
            limits=NO_LIMITS,
            binds=self._spec.binds,
            host_uid=uid,
            image=self._spec.root,
            counted=self._counted,
            init=init,
        )
        try:
            steps.take(steps.EMPTY, jail)
        finally:
            for namespace in self._home:
                syscalls.join(namespace)
        return uid

    def _start_init(self) -> int:
        """Start the first process of a jail, and return its pidfd.

        A child that ends while SIGCHLD is ignored leaves no status; that lasts microseconds.
        """
        _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
        try:
            pid = syscalls.start_sleeper(syscalls.CLONE_NEWPID | steps.SHARED_NAMESPACES)
        finally:
            _signal.signal(_signal.SIGCHLD, _ignore)
        self._inits[pid] = self._generation
        self._reap()  # setting SIGCHLD to be ignored discards one that is pending
        try:
            return os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            raise

    def _start_zygote(self) -> None:
        """Start a zygote; the supervisor gets the other end of its socket."""
        now = time.monotonic()
        self._starts = [start for start in self._starts if now - start < HASTE_SECONDS] + [now]
        if len(self._starts) > MAX_FAST_STARTS:
            self._gave_up = True
            self._tell("fatal", reason="zygote host: its zygote keeps ending right after its start")
        self._forget_zygote()
        if self._gave_up:
            return
        with contextlib.suppress(OSError):  # no process or no descriptor is free: see serve
            self._inits_socket = self._fork_zygote()
            self._poll.register(self._inits_socket, select.POLLIN)
            for _ in range(READY_INITS):
                self._add_init(self._inits_socket)

    def _fork_zygote(self) -> socket.socket:
        """Fork the zygote, send the supervisor its socket, return our socket for empty jails."""
        ours, theirs = packets.pair()
        with ours, theirs:
            inits, its_inits = packets.pair()
            with its_inits:
                try:
                    pid = os.fork()
                    if pid == 0:
                        _execute(self._spec, theirs.fileno(), its_inits.fileno())
                    self._hold_zygote(pid)
                except OSError:
                    inits.close()
                    raise
            self._tell("zygote", [ours.fileno(), self._zygote_fd])
        return inits

    def _hold_zygote(self, pid: int) -> None:
        """Watch the zygote by a pidfd; kill it if there is no descriptor for that."""
        try:
            self._zygote_fd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            raise
        self._poll.register(self._zygote_fd, select.POLLIN)

    def _forget_zygote(self) -> None:
        self._generation += 1
        if self._zygote_fd >= 0:
            self._poll.unregister(self._zygote_fd)
            os.close(self._zygote_fd)
            self._zygote_fd = -1
        if self._inits_socket is not None:
            self._poll.unregister(self._inits_socket)
            self._inits_socket.close()
            self._inits_socket = None
        self._sweep()

    def _reap(self) -> None:
        """Reap children; report guests whose zygote ended before them to the supervisor."""
        ends = reap()
        inits = [pid for pid, _ in ends if self._inits.pop(pid, 0)]
        others = [(pid, status) for pid, status in ends if pid not in inits]
        if others:
            self._tell("reaped", ends=others)
            self._sweep()

    def _sweep(self) -> None:
        """Kill pid 1 of jails that a dead zygote has left empty."""
        children = meter.children(os.getpid())
        self._inits = {pid: self._inits[pid] for pid in children if pid in self._inits}
        old = [pid for pid, zygote in self._inits.items() if zygote < self._generation]
        lived_in = {_pid_namespace(pid) for pid in children if pid not in old}
        for pid in old:
            if _pid_namespace(pid) not in lived_in and not meter.children(pid):
                os.kill(pid, signal.SIGKILL)  # our child: the number is its own until it is reaped

    def _tell(self, kind: str, fds: Sequence[int] = (), **fields: object) -> None:
        try:
            packets.send(self._control, kind, fds, **fields)
        except OSError:
            os._exit(0)


def end_jails(inits: list[int]) -> None:
    """Kill pid 1 of jails that will not be used, and close the pidfds."""
    while inits:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(inits[0], signal.SIGKILL)
        os.close(inits.pop(0))


def reap() -> list[tuple[int, int]]:
    """Reap all ended children; return pids and wait statuses."""
    ends = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ends.append((pid, status))
    return ends


def _pid_namespace(pid: int) -> str:
    """Return the pid namespace of a process; empty if it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _execute(spec: ZygoteHostSpec, control: int, inits: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        high = [os.dup(fd) for fd in (control, inits)]
        for number, fd in zip((CONTROL_FD, INITS_FD), high, strict=True):
            os.dup2(fd, number)
        syscalls.close_all_but({0, 1, 2, CONTROL_FD, INITS_FD})
        if spec.root is not None:  # its interpreter is the image's
            syscalls.install_filter(seccomp.zygote_program())
        os.execve(spec.argv[0], list(spec.argv), {**spec.env, BIND_NOW: "1"})
    finally:
        os._exit(127)


def _ignore(*_args: object) -> None:
    """SIGCHLD has to be handled to reach the wake-up pipe."""
