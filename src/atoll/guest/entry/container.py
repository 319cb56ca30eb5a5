"""The first process of a container with a kernel of its own, such as gVisor's.

    host ──socket 0──▶ pid 1: descriptors at the start; then "i" for each interrupt, "p" for ports,
     ▲                  │     "s" for each process to start beside the guest: see started
     │                  │ fork
     └── wait status ───┤
                        ├──▶ the guest: a user without rights, descriptors as in a jail
                        ├──▶ the relay, if it has a network
                        └──▶ the relay of its ports, with the socket that came with "p"

SECURITY: the walls are outside. What this process reports is the guest's word.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import struct

from ..__main__ import HIGH_FDS, Guest
from ..core import rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

CONTROL = 0
GUEST_FDS = 5
"""Requests, answers, stderr and stdout of the guest, and the socket of passed descriptors. One
more, if the guest has a network: the relay's."""
GUEST_UID = 1000
_NEW_USER_NAMESPACE = 0x10000000
_NEW_NAMESPACES = 0x7E020000
"""All flags CLONE_NEW*."""
_CAPABILITY_HEADER = struct.pack("Ii", 0x20080522, 0)
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _IS, _HAS, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_CALLS = {"x86_64": (272, 56, 435), "aarch64": (97, 220, 435)}
"""The numbers of unshare, clone and clone3."""


def main(folder: str) -> NoReturn:
    """Start the guest and watch it."""
    given = rights.receive_all(CONTROL)
    _start_relay(given)
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, _ignore)
    guest = os.fork()
    if guest == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (wake_read, wake_write):
            os.close(fd)
        _run_guest(given, folder)
    for fd in given:
        os.close(fd)
    _watch(guest, wake_read)


def _start_relay(given: list[int]) -> None:
    """Start the relay if its socket is among the descriptors, and take it out of them."""
    if len(given) == GUEST_FDS:
        return
    from ..core import relay

    with relay.listen() as listener:
        if os.fork() == 0:
            for fd in (CONTROL, *given[:GUEST_FDS]):
                os.close(fd)
            _become_user()
            relay.serve(listener, given[GUEST_FDS])
    os.close(given.pop())


def _run_guest(given: list[int], folder: str) -> NoReturn:
    os.setsid()
    _become_user()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FDS) for fd in given]
    for fd in given:
        os.close(fd)
    passed = high.pop()
    for number, fd in enumerate(high):
        os.dup2(fd, number)
        os.close(fd)
    rights.receive_on(passed)
    Guest(folder).run()


def _become_user() -> None:
    """Switch to user 1000 without capabilities; the container starts as user 0."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER_NAMESPACE) < 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for kind, outside in (("uid", uid), ("gid", gid)):
        with open("/proc/self/{}_map".format(kind), "w") as file:
            file.write("{} {} 1".format(GUEST_UID, outside))
    if libc.capset(_CAPABILITY_HEADER, bytes(24)) < 0:
        raise OSError(ctypes.get_errno(), "capset")
    program = _no_namespaces()
    place = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(place))
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if libc.prctl(_SET_SECCOMP, _FILTER, filter_, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def _no_namespaces() -> bytes:
    """Return a filter against new namespaces: as user of one the guest would have all rights.

    The flags of clone3 are in memory, which a filter cannot read: it is said not to exist, and
    libraries go back to clone.
    """
    unshare, clone, clone3 = _CALLS[os.uname().machine]
    steps = [
        (_LOAD, 0, 0, 0),  # the number of the call
        (_IS, 5, 0, clone3),
        (_IS, 1, 0, unshare),
        (_IS, 0, 2, clone),
        (_LOAD, 0, 0, 16),  # the lower half of its first argument
        (_HAS, 2, 0, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _watch(guest: int, wake: int) -> NoReturn:
    """Pass interrupts on; reap orphans; tell how the guest has ended, and end with it."""
    while True:
        readable, _, _ = select.select([CONTROL, wake], [], [])
        if wake in readable:
            os.read(wake, 512)
            status = _reap(guest)
            if status is not None:
                _tell(status)
        if CONTROL in readable:
            said, fds = rights.receive_with(CONTROL)
            if not said:
                os._exit(1)  # the host has gone
            if said == b"p":
                _serve_ports(fds, wake)
            elif said == b"s":
                _start_process(fds, wake)
            else:
                os.kill(guest, signal.SIGINT)


def _start_process(fds: list[int], wake: int) -> None:
    """Fork the process that starts another one and watches it."""
    if fds and os.fork() == 0:
        from . import started

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(wake)
        os.dup2(fds[1], CONTROL)
        _become_user()
        started.serve(fds[0], fds[1:])
    for fd in fds:
        os.close(fd)


def _serve_ports(fds: list[int], wake: int) -> None:
    """Start the relay of the guest's ports on the socket that the host has sent."""
    if fds and os.fork() == 0:
        from ..core import relay

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (CONTROL, wake):
            os.close(fd)
        _become_user()
        relay.serve_ports(fds[0])
    for fd in fds:
        os.close(fd)


def _tell(status: int) -> NoReturn:
    os.write(CONTROL, b"%d" % status)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def _reap(guest: int) -> int | None:
    """Reap all ended children; return the guest's wait status if it is among them."""
    guest_status = None
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == guest:
                guest_status = status
            if pid == 0:
                break
    except ChildProcessError:
        pass
    return guest_status


def _ignore(*_args: object) -> None:
    """SIGCHLD has to be handled to reach the wake-up pipe."""
