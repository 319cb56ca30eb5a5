"""The nursery's pid 1: keeps a zygote alive and builds shells; all ends when the warden goes.

SECURITY: it is root in a user namespace of its own and nowhere else, with the root file system
that its guests will share. It runs no guest code, and neither does the zygote: a guest is a fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import TYPE_CHECKING, Any, NoReturn

from atoll.jail import init, packets, root, shell, syscalls, users

if TYPE_CHECKING:
    from atoll.jail.spec import NurserySpec

CONTROL_FD = 3
HASTE_SECONDS, MOST_HASTE = 5.0, 3
RETRY_SECONDS = 0.5


def become(spec: NurserySpec, control: socket.socket, status: int, *, switches: bool) -> NoReturn:
    """Enter namespaces, fork pid 1 in them, and be done: the warden is told its number."""
    if switches:
        proc, first = os.open("/proc", os.O_PATH | os.O_DIRECTORY), users.pick_range()
        syscalls.unshare(syscalls.CLONE_NEWNS)
        root.build_nursery(spec.binds, first)
        users.enter_user_range(first, proc)
    else:
        users.enter_own_user_namespace(seen_as=0)
    syscalls.unshare(syscalls.CLONE_NEWPID | shell.JOINED)
    pid = os.fork()
    if pid:
        init.report(status, f"pid {pid}")
        os._exit(0)
    if switches:
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
        syscalls.mount("proc", "/proc", "proc", flags)
    else:
        root.build_nursery(spec.binds, os.geteuid())
    init.report(status, "built")
    os.close(status)
    Nursery(spec, control, switches=switches).serve()


class Nursery:
    """The loop of pid 1."""

    def __init__(self, spec: NurserySpec, control: socket.socket, *, switches: bool) -> None:
        self._spec, self._control, self._switches = spec, control, switches
        self._home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        self._zygote = 0
        self._starts: list[float] = []

    def serve(self) -> NoReturn:
        """Until the warden is gone; then the kernel ends every process in here."""
        self._start_zygote()
        while True:
            pause = None if self._zygote else RETRY_SECONDS
            readable, _, _ = select.select([self._control.fileno(), self._wake], [], [], pause)
            if not self._zygote:
                self._start_zygote()
            if self._wake in readable:
                os.read(self._wake, 4096)
                self._reap()
            if self._control.fileno() in readable:
                self._on_request()

    def _on_request(self) -> None:
        try:
            data, fds = packets.receive(self._control)
        except BlockingIOError:
            return
        if not data:
            os._exit(0)
        request = json.loads(data)
        if "warm" in request:
            self._starts.clear()  # one that has come so far ends for another reason
        else:
            self._build_shell(request, fds[0])

    def _build_shell(self, request: dict[str, Any], status_fd: int) -> None:
        """A fault is told to whoever asked: the guests of others go on."""
        with socket.socket(fileno=status_fd) as status:
            try:
                pid = shell.fork_into(lambda: self._become_shell(request, status), self._home)
                self._hand_over(request["shell"], pid)
            except OSError as exc:
                with contextlib.suppress(OSError):
                    packets.send(status, {"error": f"shell: {exc}"})

    def _become_shell(self, request: dict[str, Any], status: socket.socket) -> NoReturn:
        shell.become(request, status, self._spec.binds, switches=self._switches)

    def _hand_over(self, number: int, pid: int) -> None:
        """Let the warden hold a new jail; without a handle on it nobody could end it."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            raise
        self._tell({"shell": number, "pid": pid}, [pidfd])
        os.close(pidfd)

    def _start_zygote(self) -> None:
        """A new zygote; the warden gets the other end of its socket."""
        now = time.monotonic()
        self._starts = [one for one in self._starts if now - one < HASTE_SECONDS] + [now]
        if len(self._starts) > MOST_HASTE:
            self._tell({"fatal": "zygote: it keeps ending as soon as it is started"})
            signal.pause()
        self._zygote = 0
        with contextlib.suppress(OSError):  # no process or no descriptor is free: see serve
            ours, theirs = packets.pair()
            with ours, theirs:
                pid = os.fork()
                if pid == 0:
                    _execute(self._spec, theirs.fileno())
                self._zygote = pid
                self._tell({"zygote": pid}, [ours.fileno()])

    def _reap(self) -> None:
        ends = reap()
        if ends:
            self._tell({"reaped": ends})
        if any(pid == self._zygote for pid, _ in ends):
            self._start_zygote()

    def _tell(self, message: dict[str, object], fds: list[int] | None = None) -> None:
        try:
            packets.send(self._control, message, fds)
        except OSError:
            os._exit(0)


def reap() -> list[tuple[int, int]]:
    """Whoever has ended, with wait statuses."""
    ends = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ends.append((pid, status))
    return ends


def _execute(spec: NurserySpec, control: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(control, CONTROL_FD)
        syscalls.close_all_but({0, 1, 2, CONTROL_FD})
        os.execve(spec.argv[0], list(spec.argv), spec.env)
    finally:
        os._exit(127)


def _ignore(*_args: object) -> None:
    """SIGCHLD has to be handled to reach the wake-up pipe."""
