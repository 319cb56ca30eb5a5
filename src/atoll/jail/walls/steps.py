"""The steps that build a jail, in order. Each step is one mechanism; StepError names a failed one.

A cold start (STARTED):

    supervisor ──fork──▶ pid 1, in new namespaces: joins the control group, builds the root, becomes
                           │  the guest's user, gives up everything, then reaps (see init)
                           └─spawn──▶ the guest's interpreter

A guest that is forked off a zygote takes the same steps: the zygote host builds an empty jail
(EMPTY), the guest enters it and does the rest (FORKED). A helper builds the mounts of a live clone
(CLONED), which inherits all else from its origin. A process that joins a live jail has entered its
namespaces and takes the last steps again (JOINED): see joined. CONFINED is for a process without
namespaces, GUARDED for one whose code the runtime checks where the kernel cannot confine it.
CONTAINER is STARTED for a program that is a container runtime.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.jail.measure import cgroup
from atoll.jail.supervisor.spec import GUEST, SYSTEM_PATHS, WORK_FOLDER, check_pretence
from atoll.jail.walls import (
    cloned,
    container,
    landlock,
    loopback,
    own_folders,
    private_folders,
    rlimits,
    root,
    seccomp,
    syscalls,
    users,
    writable_root,
)

if TYPE_CHECKING:
    from atoll.jail.supervisor.spec import Bind, GuestUser, ImageRoot, JailSpec, Limits

DEVICE_PATHS = ["/dev"]
HOST_NAME = "atoll"
SHARED_NAMESPACES = (
    syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
)
"""What a jail has of its own, but for pids, users and control groups: those a process enters in
other ways."""
HIDING = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWCGROUP
"""Namespaces that a guest enters last, in its control group: they show nothing of the host."""
CLONING = (1 << 18) | (1 << 21)
"""CAP_SYS_CHROOT and CAP_SYS_ADMIN, in a user namespace that owns nothing but mount namespaces of
its clones. They are permitted, not effective: `capset` raises them, and the filter asks the
supervisor about each `capset`."""


@dataclass(slots=True, kw_only=True)
class Jail:
    """The state of one jail while its steps run."""

    limits: Limits
    binds: tuple[Bind, ...]
    """Host paths in its root."""
    host_uid: int | None
    """The host uid to switch to; None keeps the caller's uid."""
    folder: str = WORK_FOLDER
    """The working folder as the guest will name it."""
    jailed: bool = True
    workspace: str | None = None
    container: str | None = None  # the configuration of a container runtime
    image: ImageRoot | None = None
    """The image whose files are its root."""
    user: GuestUser = GUEST
    root: str = ""
    """Where the root of a forked guest is in that of its zygote: see writable_root."""
    cgroup_fds: list[int] = field(default_factory=list)
    caller: tuple[int, int] = (0, 0)
    """Uid and gid of the supervisor, which a guest without a `host_uid` keeps."""
    umask: int = 0o022
    """The host's, which a started guest gets back: its files may lie in a folder of the host."""
    origin: int = 0
    """The pid of the guest that is cloned."""
    counted: bool = False
    """Whether a control group counts memory and processes."""
    init: int = -1
    """The pidfd of the jail's pid 1, if that was started before the guest."""
    forked: bool = False
    """Whether its mounts alone restrict the files: see restrict_scope."""
    inherited: int = 0
    """Address space that a forked guest inherits."""
    proc_fd: int = -1
    upper_fd: int | None = None
    """The upper layer of an image's writable root."""
    mount_namespace_fd: int = -1
    listener: int | None = None
    """The descriptor of the filter's notifications, for the supervisor."""

    def descriptors(self) -> set[int]:
        """Return the descriptors that a forked guest's steps need."""
        rules = _scope_rules()
        return {*self.cgroup_fds, self.init} | (set() if rules is None else {rules})


class StepError(Exception):
    """A step that failed."""

    def __init__(self, step: str, cause: Exception) -> None:
        self.step = step
        super().__init__(f"{step}: {cause}")


def end_before_zygote(_: Jail) -> None:
    """Be ended before the zygote when memory runs out."""
    syscalls.prefer_to_end(syscalls.GUEST_ENDS)


def join_cgroup(jail: Jail) -> None:
    """Join the control group."""
    cgroup.admit(jail.cgroup_fds, 0)


def namespaces(jail: Jail) -> int:
    """Return what pid 1 of a jail is forked into: a user namespace, too, if we are not root.

    That one gives the capabilities that the other steps need.
    """
    if not jail.jailed:
        return 0
    more = syscalls.CLONE_NEWUSER if jail.host_uid is None else 0
    if jail.container:  # it does not take the step hide_host_paths
        more |= syscalls.CLONE_NEWCGROUP
    return syscalls.CLONE_NEWPID | SHARED_NAMESPACES | more


def map_user(jail: Jail) -> None:
    """Map the caller's user in a user namespace that the process was forked into."""
    if jail.host_uid is None:
        users.map_own(*jail.caller)


def join_namespaces(jail: Jail) -> None:
    """Enter the namespaces of the jail's pid 1; this process was forked into its pid namespace."""
    syscalls.join(jail.init, SHARED_NAMESPACES)


def visit_namespaces(jail: Jail) -> None:
    """Enter the jail's mount and network namespaces to build in them; the caller leaves them."""
    syscalls.join(jail.init, syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)


def set_host_name(_jail: Jail | None = None) -> None:
    """Hide the real host name. A zygote's guests inherit this one."""
    socket.sethostname(HOST_NAME)


def set_up_network(jail: Jail) -> None:
    """Bring up the loopback device, with small buffers."""
    loopback.bring_up(counted=jail.counted)


def build_root(jail: Jail) -> None:
    """Build a root file system and pivot into it; the host's is unmounted."""
    jail.proc_fd = os.open("/proc", os.O_PATH)
    switched = jail.host_uid is not None
    owner = jail.host_uid or os.geteuid()
    jail.upper_fd = root.build(
        jail.binds, jail.limits.disk, jail.workspace, owner, switched=switched, image=jail.image
    )


def add_folders(jail: Jail) -> None:
    """Mount further writable folders, in a new root; nothing is done if there are none."""
    if jail.limits.folders:
        owner = os.geteuid() if jail.host_uid is None else jail.host_uid
        own_folders.add(jail.limits.folders, owner)


def build_private_folders(jail: Jail) -> None:
    """Mount private folders over the root that a zygote's guests share; limit_disk limits them.

    A guest that may change its image's files gets a root of its own.
    """
    owner, image = os.geteuid() if jail.host_uid is None else jail.host_uid, jail.image
    if image is not None and image.writable:
        writable_root.build(jail.binds, owner, own_files=image.own_files)
        return
    fill = None
    if image is not None and image.own_files:
        fill = functools.partial(private_folders.copy_own, root.IMAGE, owner=owner)
    with root.uncovered(jail.binds):
        private_folders.mount_box("", None, owner, private_app=True, fill=fill)
    if fill is not None:  # guests have the same files in their root
        syscalls.mount(private_folders.BOX, root.IMAGE, None, syscalls.MS_BIND)


def mount_terminals(_jail: Jail) -> None:
    """Mount a devpts of its own, so that other jails' terminals cannot be opened."""
    root.mount_terminals("")


def mount_own_proc(jail: Jail) -> None:
    """Mount proc; only a process of the pid namespace can."""
    jail.proc_fd = os.open("/proc", os.O_PATH)
    root.mount_proc(jail.root)


def limit_disk(jail: Jail) -> None:
    """Limit the size of the private folders together."""
    if jail.limits.disk is not None:
        private_folders.resize_box(jail.root, jail.limits.disk)


def become_guest(jail: Jail) -> None:
    """Switch to the guest's user."""
    check_pretence(jail.image, jail.workspace, jail.binds)
    users.become_guest(jail.host_uid, jail.proc_fd, jail.user)


def hide_host_paths(jail: Jail) -> None:
    """Hide all mounts from /proc/self/mountinfo, and the group's path from /proc/self/cgroup.

    Move into a copy of the mount namespace, but keep the root of the first one: the kernel lists
    only mounts of the process's own namespace below its root, so none. The first namespace must
    stay alive: by its pid 1, or by the descriptor that is kept here. A new cgroup namespace has
    the group that the process is in for its root, so it comes after join_cgroup.
    """
    if jail.init < 0:
        jail.mount_namespace_fd = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    here = os.open(jail.root or "/", os.O_PATH | os.O_DIRECTORY)
    syscalls.unshare(HIDING)
    os.fchdir(here)
    os.chroot(".")
    os.close(here)


def enter_folder(jail: Jail) -> None:
    """Change to the working folder."""
    os.chdir(jail.folder)


def restore_umask(jail: Jail) -> None:
    """Give files that the guest makes the modes that files of the host's user get."""
    os.umask(jail.umask)


def set_rlimits(jail: Jail) -> None:
    """Set the limits of each process; a fork sets that of open files when it has sent its own."""
    rlimits.apply(jail.limits, jail.inherited, jailed=jail.jailed, forked=jail.init >= 0)
    if jail.init < 0:
        rlimits.limit_open_files(jail.limits)


def forbid_new_privileges(_jail: Jail) -> None:
    """Set no_new_privs: no setuid program gains rights. Landlock and seccomp require it."""
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)


def restrict_files(jail: Jail) -> None:
    """Restrict file access with Landlock, in addition to the mounts."""
    extra = [bind.target for bind in jail.binds if bind.writable]
    if jail.image is not None and jail.image.writable:
        extra.append("/")
    extra += jail.limits.folders
    private = private_folders.PRIVATE_FOLDERS.values()
    landlock.restrict(["/"], [*private, *extra], DEVICE_PATHS, no_tcp=False)


def confine_files(jail: Jail) -> None:
    """Restrict file access with Landlock alone: only the named paths can be opened."""
    readable = [bind.source for bind in jail.binds if not bind.writable]
    writable = [bind.source for bind in jail.binds if bind.writable]
    readable += [*SYSTEM_PATHS, f"/proc/{os.getpid()}"]
    devices = [f"/dev/{name}" for name in root.DEVICES]
    if not landlock.restrict(readable, [*writable, jail.folder], devices, no_tcp=True):
        raise OSError(0, "this kernel has no Landlock")


def restrict_scope(jail: Jail) -> None:
    """Restrict signals, abstract sockets and mounts with Landlock; mounts restrict the files.

    The zygote's rules are for the root that its guests share: a new one needs rules of its own.
    """
    landlock.restrict_scope(landlock.scope_rules() if jail.limits.folders else _scope_rules())


_scope_rules = functools.cache(landlock.scope_rules)


def prepare_forked() -> None:
    """Compute in the zygote what the steps of all its guests share, so that they inherit it.

    None of it depends on a guest: the filter, Landlock rules for the shared root, names in proc.
    """
    seccomp.jail_program(clones=True, user=GUEST)
    _scope_rules()
    root.proc_covers()


def restrict_joined(jail: Jail) -> None:
    """Restrict file access as that of the guest is restricted that the process joins."""
    if jail.forked:
        landlock.restrict_scope(landlock.scope_rules())
    else:
        restrict_files(jail)


def drop_capabilities(_jail: Jail) -> None:
    """Drop all capabilities."""
    syscalls.drop_capabilities()


def drop_all_but_dormant(_jail: Jail) -> None:
    """Drop all capabilities but those of CLONING, which stay permitted and not effective."""
    syscalls.drop_capabilities(dormant=CLONING)


def filter_calls(jail: Jail) -> None:
    """Install the allow-list of system calls."""
    jail.listener = syscalls.install_filter(seccomp.jail_program(user=jail.user), listen=True)


def filter_calls_unasked(jail: Jail) -> None:
    """Install the allow-list for a process that gets no descriptors of the host."""
    syscalls.install_filter(seccomp.jail_program(user=jail.user))


def filter_calls_of_fork(jail: Jail) -> None:
    """Install the allow-list that asks the supervisor about the calls of a live clone."""
    program = seccomp.jail_program(clones=True, user=jail.user)
    jail.listener = syscalls.install_filter(program, listen=True)


def filter_calls_confined(jail: Jail) -> None:
    """Install the stricter allow-list of a process without namespaces."""
    jail.listener = syscalls.install_filter(seccomp.confined_program(), listen=True)


Step = Callable[[Jail], None]


def _if_possible(step: Step) -> Step:
    """Return a step that does nothing on an old kernel or an unknown machine."""

    def attempt(jail: Jail) -> None:
        with contextlib.suppress(OSError, KeyError):
            step(jail)

    return attempt


STARTED: tuple[Step, ...] = (
    join_cgroup,
    map_user,
    set_host_name,
    set_up_network,
    build_root,
    add_folders,
    become_guest,
    hide_host_paths,
    enter_folder,
    restore_umask,
    set_rlimits,
    forbid_new_privileges,
    restrict_files,
    drop_capabilities,
    filter_calls,
)
CONTAINER: tuple[Step, ...] = (
    join_cgroup,
    map_user,
    set_host_name,
    container.build_root,
    container.enter_holder,
    container.become_root_of_nothing,
    restore_umask,
    set_rlimits,
    forbid_new_privileges,
)
EMPTY: tuple[Step, ...] = (visit_namespaces, set_up_network, mount_terminals, build_private_folders)
FORKED: tuple[Step, ...] = (
    end_before_zygote,
    join_cgroup,
    join_namespaces,
    mount_own_proc,
    limit_disk,
    add_folders,
    become_guest,
    hide_host_paths,
    enter_folder,
    set_rlimits,
    forbid_new_privileges,
    restrict_scope,
    drop_all_but_dormant,
    filter_calls_of_fork,
)
CLONED: tuple[Step, ...] = (
    cloned.join_origin,
    cloned.become_guest,
    cloned.copy_mount_namespace,
    cloned.copy_folders,
)
JOINED: tuple[Step, ...] = (
    restore_umask,
    set_rlimits,
    forbid_new_privileges,
    restrict_joined,
    drop_capabilities,
    filter_calls_unasked,
)
CONFINED: tuple[Step, ...] = (
    join_cgroup,
    enter_folder,
    restore_umask,
    set_rlimits,
    forbid_new_privileges,
    confine_files,
    drop_capabilities,
    filter_calls_confined,
)
GUARDED: tuple[Step, ...] = (
    join_cgroup,
    enter_folder,
    restore_umask,
    set_rlimits,
    _if_possible(forbid_new_privileges),
    _if_possible(confine_files),
    _if_possible(drop_capabilities),
    _if_possible(filter_calls_confined),
)


def take(steps: tuple[Step, ...], jail: Jail) -> None:
    """Run the steps in order; StepError names the one that failed."""
    for step in steps:
        try:
            step(jail)
        except Exception as exc:
            raise StepError(step.__name__, exc) from exc


def folder_of(spec: JailSpec, private: str | None) -> str:
    """Return where the program starts: the real path if it has no root of its own."""
    if spec.jailed:
        return spec.folder or WORK_FOLDER
    return spec.workspace or private or "/"
