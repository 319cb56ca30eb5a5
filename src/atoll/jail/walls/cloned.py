"""The steps of a live clone: a helper builds its mounts, with copies of the origin's files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from atoll.jail.measure import cgroup
from atoll.jail.walls import own_folders, private_folders, root, syscalls, users, writable_root
from atoll.jail.walls.copytree import copy_tree

if TYPE_CHECKING:
    from atoll.jail.walls.steps import Jail


def join_origin(jail: Jail) -> None:
    """Enter the user and mount namespaces of the guest that is cloned."""
    jail.proc_fd = os.open("/proc", os.O_PATH)  # the guest's proc does not show this process
    _join(jail.origin)


def _join(guest: int) -> None:
    names = ("user", "mnt")
    for fd in [os.open(f"/proc/{guest}/ns/{name}", os.O_RDONLY) for name in names]:
        syscalls.join(fd)


def open_upper(guest: int) -> int:
    """Enter the namespaces of a forked guest, and return the upper layer of its root."""
    _join(guest)
    return os.open(writable_root.UPPER, os.O_PATH | os.O_DIRECTORY)


def become_guest(jail: Jail) -> None:
    """Switch to the guest's user in the user namespace of the origin."""
    users.switch_inside(jail.user)


def copy_mount_namespace(_jail: Jail) -> None:
    """Enter a copy of the mount namespace."""
    syscalls.unshare(syscalls.CLONE_NEWNS)


def copy_folders(jail: Jail) -> None:
    """Mount private folders, or a whole root, with copies of the origin's files.

    The kernel charges a page to the group of the process that fills it, so this joins the clone's
    group before it copies; only if there are files, since joining is slow in version 2.
    """

    def join_group() -> None:
        cgroup.admit(jail.cgroup_fds, 0)
        jail.cgroup_fds = []

    def fill(source: str, target: str) -> None:
        if jail.cgroup_fds and os.listdir(source):
            join_group()
        copy_tree(source, target)

    disk = jail.limits.disk
    if jail.root:
        writable_root.build_again(jail.binds, disk, join_group)
        return
    with root.uncovered(jail.binds):
        private_folders.mount_box("", disk, None, private_app=True, fill=fill)
    own_folders.mount_again(jail.limits.folders)
