"""The order in which the walls go up. Each step is one mechanism; each may fail, and says so.

A cold start (OUTER, then INNER):

    warden ──fork──▶ A  enters namespaces; puts B into the control group, and is done
                     └─fork──▶ B  pid 1: builds the root, becomes the guest's user, gives up
                               │          everything; waits for A's word, then reaps (see init)
                               └─fork──▶ C  executes the guest's interpreter

A guest that is forked off a zygote takes the same steps: the nursery makes an empty jail and does
what need not be done by the guest itself (EMPTY); the guest does the rest (FORKED). A process
without namespaces (CONFINED) takes those that are left.

Joining a control group takes the kernel longer than all else together, so A does it for B while
B builds.
"""

from __future__ import annotations

import fcntl
import functools
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.jail import cgroup, landlock, rlimits, root, seccomp, syscalls, users
from atoll.jail.spec import WORK_FOLDER

if TYPE_CHECKING:
    from atoll.jail.cgroup import Cgroup
    from atoll.jail.spec import Bind, JailSpec, Limits

SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40
DEVICE_PATHS = ["/dev"]
TCP_BUFFER = b"4096 16384 131072"
HOST_NAME = "atoll"
SHARED_NAMESPACES = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWCGROUP
)
"""What a jail has of its own, but for pids and users: those a process enters in other ways."""
CLONING = (1 << 18) | (1 << 21)
"""CAP_SYS_CHROOT and CAP_SYS_ADMIN, over a user namespace that owns nothing but mount tables of its
clones. They lie dormant: only `capset` wakes them, and the filter asks the warden about that."""


@dataclass(slots=True, kw_only=True)
class Jail:
    """One jail in the making."""

    limits: Limits
    binds: tuple[Bind, ...]
    """Host paths in its root."""
    host_uid: int | None
    """The host user to become, if we may; else the guest stays who we are."""
    folder: str = WORK_FOLDER
    """The working folder as the guest will name it."""
    jailed: bool = True
    workspace: str | None = None
    cgroup: Cgroup | None = None
    cgroup_fds: list[int] = field(default_factory=list)
    counted: bool = False
    """Whether a control group counts memory and processes."""
    init: int = -1
    """The pidfd of the jail's pid 1, where that was there first."""
    inherited: int = 0
    """Address space that a forked guest is born with."""
    proc_fd: int = -1
    mount_namespace_fd: int = -1
    listener: int | None = None
    """Where the filter's questions come, for the warden."""

    def descriptors(self) -> set[int]:
        """What a forked guest's steps need."""
        rules = _scope_rules()
        return {*self.cgroup_fds, self.init} | (set() if rules is None else {rules})


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
    cgroup.admit(jail.cgroup_fds, 0)


def enter_user_namespace(jail: Jail) -> None:
    """Without root, rights over new namespaces come from a user namespace of our own."""
    if jail.host_uid is None:
        users.enter_own_user_namespace()


def enter_namespaces(_jail: Jail) -> None:
    """Mounts, processes, network, IPC, host name, control groups: all our own."""
    syscalls.unshare(syscalls.CLONE_NEWPID | SHARED_NAMESPACES)


def join_namespaces(jail: Jail) -> None:
    """Enter those of the jail's pid 1; in its pid namespace this process was born."""
    syscalls.join(jail.init, SHARED_NAMESPACES)


def visit_namespaces(jail: Jail) -> None:
    """Enter mounts and network of the jail, to build there and leave again."""
    syscalls.join(jail.init, syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)


def set_host_name(_jail: Jail | None = None) -> None:
    """The real host's name is none of the guest's business. A zygote's guests inherit theirs."""
    socket.sethostname(HOST_NAME)


def set_up_network(jail: Jail) -> None:
    """A network of just the guest's own loopback, with small buffers.

    Where they cannot be made small and no control group counts them, there is none at all.
    """
    try:
        for name in ("tcp_rmem", "tcp_wmem"):
            _write(f"/proc/sys/net/ipv4/{name}", TCP_BUFFER)
    except OSError:
        if not jail.counted:
            return
    request = struct.pack("16sH14x", b"lo", IFF_UP | IFF_RUNNING)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)


def build_root(jail: Jail) -> None:
    """A root of its own, and the host's is gone."""
    jail.proc_fd = os.open("/proc", os.O_PATH)
    switched = jail.host_uid is not None
    owner = jail.host_uid or os.geteuid()
    root.build(jail.binds, jail.limits.disk, jail.workspace, owner, switched=switched)


def build_private_folders(jail: Jail) -> None:
    """Private folders in the root that all guests of a zygote share; their limit comes later."""
    covered = root.lift(root.covered(jail.binds))
    owner = os.geteuid() if jail.host_uid is None else jail.host_uid
    root.mount_box("", None, owner, private_app=True)
    root.put_back(covered)


def mount_terminals(_jail: Jail) -> None:
    """Pseudo-terminals of its own: none of another's can be named."""
    root.mount_terminals("")


def mount_own_proc(jail: Jail) -> None:
    """Only a process of a pid namespace can mount its proc."""
    jail.proc_fd = os.open("/proc", os.O_PATH)
    root.mount_proc("")


def limit_disk(jail: Jail) -> None:
    """The private folders together may take so much."""
    if jail.limits.disk is not None:
        root.resize_box(jail.limits.disk)


def become_guest(jail: Jail) -> None:
    """No longer the caller."""
    users.become_guest(jail.host_uid, jail.proc_fd)


def hide_mount_table(jail: Jail) -> None:
    """No host path shows in /proc/self/mountinfo.

    Live in a copy of the mount namespace, but below the root of the first: the kernel lists only
    mounts of one's own namespace that are below one's root, so none. Somebody has to keep the first
    namespace alive: its pid 1, or the descriptor that is kept here.
    """
    if jail.init < 0:
        jail.mount_namespace_fd = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    here = os.open("/", os.O_PATH | os.O_DIRECTORY)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    os.fchdir(here)
    os.chroot(".")
    os.close(here)


def enter_folder(jail: Jail) -> None:
    """Start in the working folder."""
    os.chdir(jail.folder)


def set_rlimits(jail: Jail) -> None:
    """Limits of each process."""
    rlimits.apply(jail.limits, jailed=jail.jailed, inherited=jail.inherited)


def forbid_new_privileges(_jail: Jail) -> None:
    """No setuid program gives anything any more; Landlock and seccomp ask for this."""
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)


def restrict_files(jail: Jail) -> None:
    """Landlock as a second wall around the files of the jail."""
    extra = [bind.target for bind in jail.binds if bind.writable]
    landlock.restrict(["/"], [*root.PRIVATE_FOLDERS.values(), *extra], DEVICE_PATHS, no_tcp=False)


def confine_files(jail: Jail) -> None:
    """Landlock as the only wall: what is not named cannot be opened."""
    readable = [bind.source for bind in jail.binds if not bind.writable]
    writable = [bind.source for bind in jail.binds if bind.writable]
    readable += [*root.SYSTEM_PATHS, f"/proc/{os.getpid()}"]
    devices = [f"/dev/{name}" for name in root.DEVICES]
    if not landlock.restrict(readable, [*writable, jail.folder], devices, no_tcp=True):
        raise OSError(0, "this kernel has no Landlock")


def restrict_scope(_jail: Jail) -> None:
    """Landlock around signals, sockets and mounts; files are left to the mounts (see landlock)."""
    landlock.restrict_scope(_scope_rules())


_scope_rules = functools.cache(landlock.scope_rules)


def prepare_forked() -> None:
    """In a zygote: make what the steps of all its guests have in common, so that it is inherited.

    Nothing of it knows a guest: a filter, rules about the root that all share, names in proc.
    """
    seccomp.jail_program(clones=True)
    _scope_rules()
    root.proc_covers()


def drop_capabilities(_jail: Jail) -> None:
    """Nothing left to give up."""
    syscalls.drop_capabilities()


def drop_all_but_dormant(_jail: Jail) -> None:
    """Nothing is left in effect; what a live clone needs stays permitted."""
    syscalls.drop_capabilities(dormant=CLONING)


def filter_calls(jail: Jail) -> None:
    """The allow-list of system calls; from here on nothing but it."""
    jail.listener = syscalls.install_filter(seccomp.jail_program(), listen=True)


def filter_calls_of_fork(jail: Jail) -> None:
    """The same; about the calls that a live clone needs the warden is asked."""
    jail.listener = syscalls.install_filter(seccomp.jail_program(clones=True), listen=True)


def filter_calls_confined(jail: Jail) -> None:
    """The stricter allow-list of a process without namespaces."""
    jail.listener = syscalls.install_filter(seccomp.confined_program(), listen=True)


Step = Callable[[Jail], None]

OUTER: tuple[Step, ...] = (open_cgroup, enter_user_namespace, enter_namespaces)
INNER: tuple[Step, ...] = (
    set_host_name,
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
EMPTY: tuple[Step, ...] = (
    visit_namespaces,
    set_up_network,
    mount_terminals,
    build_private_folders,
)
FORKED: tuple[Step, ...] = (
    join_cgroup,
    join_namespaces,
    mount_own_proc,
    limit_disk,
    become_guest,
    hide_mount_table,
    enter_folder,
    set_rlimits,
    forbid_new_privileges,
    restrict_scope,
    drop_all_but_dormant,
    filter_calls_of_fork,
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


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
