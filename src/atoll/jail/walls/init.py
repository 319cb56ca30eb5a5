"""Pid 1 of a jail: starts the guest, reaps orphans, reports to the supervisor how it ended.

SECURITY: it has the same restrictions as the guest, which cannot read its memory or descriptors
(not dumpable). It ends, and with it the whole jail, when the supervisor is gone.

If the spec is attended, the last descriptor is a socket, on which pid 1 sends the host what it
opened for it, and waits until it may start the program.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
from typing import TYPE_CHECKING, Any, NoReturn

from atoll.jail.supervisor import packets
from atoll.jail.supervisor.spec import GUEST, Watch
from atoll.jail.walls import seccomp, syscalls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.jail.supervisor.spec import JailSpec

_FIRST_HIGH_FD = 16
DEFAULT_SIGNALS = (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)


def run(spec: JailSpec, guest_fds: list[int], status_fd: int, lifeline_fd: int) -> NoReturn:
    """Start the guest; exit when the guest or the supervisor ends."""
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, _ignore)
    terminal = _await_host(spec, guest_fds.pop()) if spec.attended else None
    guest = _spawn(spec, guest_fds, status_fd, terminal)
    signal.signal(signal.SIGINT, lambda *_: _interrupt(guest))
    poller = select.poll()  # select() takes no descriptor from 1024 on, as a busy supervisor has
    for fd in (wake_read, lifeline_fd):
        poller.register(fd, select.POLLIN)
    while True:
        if lifeline_fd in dict(poller.poll()):
            os._exit(1)
        os.read(wake_read, 512)
        status = _reap(guest)
        if status is not None:
            report(status_fd, "exit", status=status)
            os._exit(0)


def _await_host(spec: JailSpec, control_fd: int) -> int | None:
    """Wait until the host says that the program may start; return its terminal, if it gets one.

    The host gets the master of the terminal and the listener of watched calls: from then on it has
    to answer them, also those of this process.
    """
    terminal = None
    with packets.end(control_fd) as control:
        fds = []
        if spec.terminal:
            master, terminal = os.openpty()
            fds.append(master)
        if spec.filtered_late:
            watched = spec.watch is not Watch.NOTHING
            user = spec.root.user if spec.root else GUEST
            program = seccomp.jail_program(
                user=user, unix_sockets=spec.unix_sockets, watch=spec.watch
            )
            listener = syscalls.install_filter(program, listen=watched)
            fds += [] if listener is None else [listener]
        if fds:
            packets.send(control, "ready", fds)
        packets.close_all(fds)
        if packets.receive(control) is None:
            os._exit(1)
    return terminal


def _spawn(spec: JailSpec, guest_fds: list[int], status_fd: int, terminal: int | None) -> int:
    """Start the guest's interpreter as a child and return its pid; the descriptors are its own.

    Unlike a fork, this copies neither page tables nor, later, the pages that are written to. The
    first terminal that a new session opens becomes its controlling one.
    """
    high = _high(guest_fds)
    actions: list[Any] = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(high)]
    if terminal is not None:  # open until the program has it: its master would end before
        high.append(terminal)
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.ttyname(terminal), os.O_RDWR, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, 0, number) for number in (1, 2)]
    try:
        return os.posix_spawn(
            find_program(spec.argv[0], spec.env),
            spec.argv,
            spec.env,
            file_actions=actions,
            setsid=True,
            setsigdef=DEFAULT_SIGNALS,
        )
    except OSError as exc:
        _fail(spec, status_fd, exc)
    finally:
        packets.close_all([*high, *guest_fds])


def execute(
    spec: JailSpec, guest_fds: list[int], status_fd: int, folder: str | None = None
) -> NoReturn:
    """Execute the guest's interpreter, with its descriptors as 0, 1, 2 and so on.

    `folder` becomes HOME and TMPDIR if the jail has no root of its own.
    """
    try:
        os.setsid()
        for number, fd in enumerate(_high(guest_fds)):
            os.dup2(fd, number)
        for name in DEFAULT_SIGNALS:
            signal.signal(name, signal.SIG_DFL)
        env = dict(spec.env, HOME=folder, TMPDIR=folder) if folder else spec.env
        os.execve(find_program(spec.argv[0], spec.env), list(spec.argv), env)
    except OSError as exc:
        _fail(spec, status_fd, exc)


def find_program(name: str, env: Mapping[str, str]) -> str:
    """Return the program's path; a name without a slash is looked up in the PATH of its jail."""
    if "/" in name:
        return name
    paths = (f"{folder}/{name}" for folder in env.get("PATH", "").split(":") if folder)
    return next((path for path in paths if os.access(path, os.X_OK)), f"/{name}")


def _high(fds: list[int]) -> list[int]:
    """Copy descriptors to numbers that the guest's own do not have."""
    return [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_HIGH_FD) for fd in fds]


def _fail(spec: JailSpec, status_fd: int, exc: OSError) -> NoReturn:
    report(status_fd, "error", reason=f"execute {spec.argv[0]}: {exc.strerror}")
    os._exit(127)


def report(status_fd: int, kind: str, fds: Sequence[int] = (), **fields: Any) -> None:
    """Send the supervisor a message on its private socket; close the descriptors sent with it."""
    with contextlib.suppress(OSError), packets.end(os.dup(status_fd)) as end:
        packets.send(end, kind, fds, **fields)
    packets.close_all(fds)


def _reap(guest: int) -> int | None:
    """Reap all ended children; return the guest's wait status if it is among them."""
    guest_status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == guest:
                guest_status = status
            if pid == 0:
                break
    return guest_status


def _interrupt(guest: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(guest, signal.SIGINT)


def _ignore(*_args: object) -> None:
    """SIGCHLD has to be handled to reach the wake-up pipe."""
