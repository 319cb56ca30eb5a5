"""The order in which the walls go up. Each step is one mechanism; each may fail, and says so.

    warden ──fork──▶ A  enters namespaces; puts B into the control group, and is done
                     └─fork──▶ B  pid 1: builds the root, becomes the guest's user, gives up
                               │          everything; waits for A's word, then reaps (see init)
                               └─fork──▶ C  executes the guest's interpreter

Joining a control group takes the kernel longer than all else together, so A does it for B while
B builds.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.jail import cgroup, landlock, rlimits, root, seccomp, syscalls, users
from atoll.jail.spec import WORK_FOLDER

if TYPE_CHECKING:
    from atoll.jail.cgroup import Cgroup
    from atoll.jail.spec import JailSpec

SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40
DEVICE_PATHS = ["/dev"]
TCP_BUFFER = "4096 16384 131072"


@dataclass(slots=True)
class Jail:
    """One jail in the making."""

    spec: JailSpec
    cgroup: Cgroup | None
    host_uid: int | None
    """The host user to become, if we may; else the guest stays who we are."""
    folder: str
    """The working folder as the guest will name it."""
    cgroup_fds: list[int] = field(default_factory=list)
    proc_fd: int = -1
    mount_namespace_fd: int = -1
    listener: int | None = None
    """Where the filter's questions come, for the warden."""


class StepError(Exception):
    """A wall that could not be put up."""

    def __init__(self, step: str, cause: Exception) -> None:
        self.step = step
        super().__init__(f"{step}: {cause}")


def open_cgroup(jail: Jail) -> None:
    """While the host's files are in sight."""
    if jail.cgroup is not None:
        jail.cgroup_fds = jail.cgroup.open()


def join_cgroup(jail: Jail) -> None:
    """Be counted."""
    cgroup.admit(jail.cgroup_fds, os.getpid())


def enter_user_namespace(jail: Jail) -> None:
    """Without root, rights over new namespaces come from a user namespace of our own."""
    if jail.host_uid is None:
        users.enter_own_user_namespace()


def enter_namespaces(_jail: Jail) -> None:
    """Mounts, processes, network, IPC, host name, control groups: all our own."""
    syscalls.unshare(
        syscalls.CLONE_NEWNS
        | syscalls.CLONE_NEWPID
        | syscalls.CLONE_NEWNET
        | syscalls.CLONE_NEWIPC
        | syscalls.CLONE_NEWUTS
        | syscalls.CLONE_NEWCGROUP
    )


def set_up_network(jail: Jail) -> None:
    """A host name that tells nothing, and a network of just the guest's own loopback."""
    make_network(counted=jail.cgroup is not None)


def make_network(*, counted: bool) -> None:
    """The real host's name is none of the guest's business; loopback has small buffers.

    Where they cannot be made small and no control group counts them, there is none at all.
    """
    socket.sethostname("atoll")
    try:
        for name in ("tcp_rmem", "tcp_wmem"):
            Path(f"/proc/sys/net/ipv4/{name}").write_text(TCP_BUFFER)
    except OSError:
        if not counted:
            return
    request = struct.pack("16sH14x", b"lo", IFF_UP | IFF_RUNNING)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)


def build_root(jail: Jail) -> None:
    """A root of its own, and the host's is gone."""
    jail.proc_fd = os.open("/proc", os.O_PATH)
    switched = jail.host_uid is not None
    root.build(jail.spec, jail.host_uid or os.geteuid(), switched=switched)


def become_guest(jail: Jail) -> None:
    """No longer the caller."""
    users.become_guest(jail.host_uid, jail.proc_fd)


def hide_mount_table(jail: Jail) -> None:
    """No host path shows in /proc/self/mountinfo."""
    jail.mount_namespace_fd = hide_below_root()


def hide_below_root() -> int:
    """Live in a copy of the mount namespace, but below the root of the first.

    The kernel lists only mounts of one's own namespace that are below one's root: none. The
    descriptor that is returned keeps the first namespace alive.
    """
    first = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    here = os.open("/", os.O_PATH | os.O_DIRECTORY)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    os.fchdir(here)
    os.chroot(".")
    os.close(here)
    return first


def enter_folder(jail: Jail) -> None:
    """Start in the working folder."""
    os.chdir(jail.folder)


def set_rlimits(jail: Jail) -> None:
    """Limits of each process."""
    rlimits.apply(jail.spec.limits, jailed=jail.spec.jailed)


def forbid_new_privileges(_jail: Jail) -> None:
    """No setuid program gives anything any more; Landlock and seccomp ask for this."""
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)


def restrict_files(jail: Jail) -> None:
    """Landlock as a second wall around the files of the jail."""
    extra = [bind.target for bind in jail.spec.binds if bind.writable]
    landlock.restrict(["/"], [*root.PRIVATE_FOLDERS.values(), *extra], DEVICE_PATHS, no_tcp=False)


def confine_files(jail: Jail) -> None:
    """Landlock as the only wall: what is not named cannot be opened."""
    readable = [bind.source for bind in jail.spec.binds if not bind.writable]
    writable = [bind.source for bind in jail.spec.binds if bind.writable]
    readable += [*root.SYSTEM_PATHS, f"/proc/{os.getpid()}"]
    devices = [f"/dev/{name}" for name in root.DEVICES]
    if not landlock.restrict(readable, [*writable, jail.folder], devices, no_tcp=True):
        raise OSError(0, "this kernel has no Landlock")


def drop_capabilities(_jail: Jail) -> None:
    """Nothing left to give up."""
    syscalls.drop_capabilities()


def filter_calls(jail: Jail) -> None:
    """The allow-list of system calls; from here on nothing but it."""
    jail.listener = syscalls.install_filter(seccomp.jail_program(), listen=True)


def filter_calls_confined(jail: Jail) -> None:
    """The stricter allow-list of a process without namespaces."""
    jail.listener = syscalls.install_filter(seccomp.confined_program(), listen=True)


Step = Callable[[Jail], None]

OUTER: tuple[Step, ...] = (open_cgroup, enter_user_namespace, enter_namespaces)
INNER: tuple[Step, ...] = (
    set_up_network,
    build_root,
    become_guest,
    hide_mount_table,
    enter_folder,
    set_rlimits,
    forbid_new_privileges,
    restrict_files,
    drop_capabilities,
    filter_calls,
)
CONFINED: tuple[Step, ...] = (
    open_cgroup,
    join_cgroup,
    enter_folder,
    set_rlimits,
    forbid_new_privileges,
    confine_files,
    drop_capabilities,
    filter_calls_confined,
)


def take(steps: tuple[Step, ...], jail: Jail) -> None:
    """Take the steps in order; StepError names the one that failed."""
    for step in steps:
        try:
            step(jail)
        except Exception as exc:
            raise StepError(step.__name__, exc) from exc


def folder_of(spec: JailSpec, private: str | None) -> str:
    """The working folder: /app in a jail; the real one where there is no root of its own."""
    if spec.jailed:
        return WORK_FOLDER
    return spec.workspace or private or "/"
