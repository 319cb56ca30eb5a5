"""A shell: a jail that is built and empty but for its pid 1, until a zygote's child moves in.

It stands in the nursery's root, so little is left to build: a network, a proc, private folders.
SECURITY: pid 1 holds no capability when guest code comes, and its memory is closed to it.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, NoReturn

from atoll.jail import packets, root, steps, syscalls, users

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from atoll.jail.spec import Bind

JOINED = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWCGROUP
)


NAMESPACES = ("pid", "net", "ipc", "uts", "cgroup", "mnt", "user")
"""In the order to join them in: the last gives up the right to join the others."""


def become(
    request: dict[str, Any], status: socket.socket, binds: tuple[Bind, ...], *, switches: bool
) -> NoReturn:
    """Build the shell in this process, the first of a new pid namespace, and be its pid 1.

    `binds` are those of the nursery's root.
    """
    try:
        syscalls.close_all_but({0, 1, 2, status.fileno()})
        way_in = _build(request, request["uid"] if switches else None, binds)
        packets.send(status, {"built": True}, way_in)
        status.close()
        for fd in way_in:
            os.close(fd)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel itself reaps orphans then
        while True:
            signal.pause()
    except BaseException as exc:  # noqa: BLE001 - nothing may unwind into the nursery's loop
        packets.send(status, {"error": f"shell: {type(exc).__name__}: {exc}"})
    finally:
        os._exit(1)


def _build(request: dict[str, Any], uid: int | None, binds: tuple[Bind, ...]) -> list[int]:
    """Everything up to the point where guest code may come; the way in, as `enter` takes it."""
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    syscalls.unshare(JOINED)
    steps.make_network(counted=request["counted"])
    root.mount_proc("")
    owner = os.geteuid() if uid is None else uid
    covered = root.lift_covered(binds)
    root.mount_box("", request["disk"], owner, private_app=True)
    root.put_back(covered)
    users.become_guest(uid, proc)
    steps.hide_below_root()
    way_in = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    way_in.append(os.open("/", os.O_PATH | os.O_DIRECTORY))
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    return way_in


def enter(way_in: list[int]) -> None:
    """Into a shell's namespaces (its pid namespace is for children), below its root."""
    *namespaces, place = way_in
    for namespace in namespaces[1:]:
        syscalls.join(namespace)
    os.fchdir(place)
    os.chroot(".")


def fork_into(build: Callable[[], NoReturn], home: int) -> int:
    """Fork `build` as pid 1 of a new pid namespace; `home` is the file of our own."""
    syscalls.unshare(syscalls.CLONE_NEWPID)
    try:
        pid = os.fork()
    except OSError:
        _return_to(home)
        raise
    if pid == 0:
        build()
    _return_to(home)
    return pid


def _return_to(home: int) -> None:
    """Or the next process would be born in a jail that is somebody else's."""
    try:
        syscalls.join(home)
    except OSError:  # for want of memory: once more, or the zygote host ends
        syscalls.join(home)
