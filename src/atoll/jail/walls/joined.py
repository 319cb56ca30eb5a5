"""A further process in a live jail, behind the same walls as its guest.

    supervisor ──fork──▶ helper: control group, namespaces, root, user ──clone──▶ the process
      ▲  ▲                 │ its pid                                                │ JOINED
      │  └─────────────────┘                                                        │
      └──────────────── host's ends of its pipes or terminal ───────────────────────┤
                                                                                    └▶ program

SECURITY: the helper is outside of the jail's pid namespace, so the guest can neither see nor signal
it. The process is a child of the supervisor, the guest's user without groups of the host, and not
dumpable: until the program is executed, the guest cannot trace it or open what is its own. It has
rights in the user namespace of the guest alone, which owns nothing, and gives them up before it
looks at any path that the guest can change. A guest that kills or stops it keeps it from starting.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import termios
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from atoll.jail.measure import cgroup
from atoll.jail.supervisor import packets
from atoll.jail.walls import init, steps, syscalls, users

if TYPE_CHECKING:
    import socket

    from atoll.jail.supervisor.spec import GuestUser

NAMESPACES = ("net", "ipc", "uts", "pid", "mnt", "cgroup", "user")
"""In the order in which they are joined: the guest's user namespace has no rights over the first
ones. The first one tells which user namespace does."""
SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
MAX_SPEC = 4 << 20


@dataclass(frozen=True, slots=True)
class Entrance:
    """Descriptors of the namespaces of a guest, in the order of NAMESPACES, and of its root."""

    namespaces: list[int]
    root: int

    @classmethod
    def of(cls, process: str) -> Entrance:
        """Open those of a process in /proc."""
        flags = os.O_RDONLY | os.O_CLOEXEC
        namespaces = [os.open(f"/proc/{process}/ns/{name}", flags) for name in NAMESPACES]
        return cls(namespaces, os.open(f"/proc/{process}/root", os.O_PATH | os.O_CLOEXEC))

    def descriptors(self) -> list[int]:
        """Return all descriptors."""
        return [*self.namespaces, self.root]


def join(
    jail: steps.Jail, entrance: Entrance, spec_fd: int, status: socket.socket, *, switches: bool
) -> NoReturn:
    """In the helper: enter the jail, and start the process there; never return."""
    try:
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        if jail.cgroup_fds:
            cgroup.admit(jail.cgroup_fds, 0)
        _enter(entrance, jail.user, switches=switches)
        pid = syscalls.fork_sibling()
        if pid == 0:
            _become_process(jail, spec_fd, status)
        packets.send(status, "forked", pid=pid)
    except BaseException as exc:  # noqa: BLE001 - nothing may unwind into the supervisor's loop
        _fail(status, exc)
    os._exit(0)


def _enter(entrance: Entrance, user: GuestUser, *, switches: bool) -> None:
    """Enter the namespaces and the root of the guest, and become its user.

    `switches`: this process is root, whose groups are not the guest's.
    """
    if switches:
        os.setgroups([])
    users.enter_owner(entrance.namespaces[0])
    for fd in entrance.namespaces:
        syscalls.join(fd)
    os.fchdir(entrance.root)
    os.chroot(".")
    users.switch_inside(user)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)


def _become_process(jail: steps.Jail, spec_fd: int, status: socket.socket) -> NoReturn:
    """Take the steps of the walls, then execute the program that `spec_fd` describes."""
    try:
        syscalls.prefer_to_end(syscalls.GUEST_ENDS)
        os.setsid()
        syscalls.close_all_but({0, 1, 2, spec_fd, status.fileno()})
        steps.take(steps.JOINED, jail)
        spec = json.loads(os.pread(spec_fd, MAX_SPEC, 0))
        os.close(spec_fd)
        os.chdir(spec["folder"] or jail.folder)
        ours, kept = _open_streams(spec)
        packets.send(status, "ready", kept, pid=os.getpid())
        packets.close_all(kept)
        for number, fd in enumerate(ours):
            os.dup2(fd, number)
        packets.close_all(set(ours))
        _execute(spec["argv"], spec["env"])
    except BaseException as exc:  # noqa: BLE001 - nothing may unwind into the supervisor's loop
        _fail(status, exc)
    os._exit(127)


def _open_streams(spec: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Open pipes, or a terminal; return what the process gets as 0 to 2, and the host's ends.

    They are opened here so that they are the guest's own, who may then open /dev/stdout.
    """
    if spec["terminal"]:
        master, inner = os.openpty()
        set_size(master, *spec["terminal"])
        name = os.ttyname(inner)
        os.close(inner)
        terminal = os.open(name, os.O_RDWR)  # the first of a new session is its controlling one
        return [terminal] * 3, [master]
    stdin, out, err = os.pipe(), os.pipe(), os.pipe()
    if spec["stdin"]:
        return [stdin[0], out[1], err[1]], [stdin[1], out[0], err[0]]
    packets.close_all(stdin)
    return [os.open(os.devnull, os.O_RDONLY), out[1], err[1]], [out[0], err[0]]


def set_size(terminal: int, rows: int, columns: int) -> None:
    """Set the size of a terminal."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _execute(argv: list[str], env: dict[str, str]) -> None:
    """Execute a program; the argument of a shell if its name is empty."""
    if not argv[0]:
        shell = next((path for path in SHELLS if os.access(path, os.X_OK)), SHELLS[-1])
        argv = [shell, "-c", *argv[1:]]
    for number in init.DEFAULT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    os.execve(init.find_program(argv[0], env), argv, env)


def _fail(status: socket.socket, exc: BaseException) -> None:
    said = f"{exc.strerror}: {exc.filename}" if isinstance(exc, OSError) and exc.filename else exc
    packets.send(status, "error", reason=f"{said}"[:1000])
