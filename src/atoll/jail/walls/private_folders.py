"""Private folders of a guest: one tmpfs, with the disk limit as its size, mounted in places."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from atoll.jail.supervisor.spec import GUEST_HOME, WORK_FOLDER
from atoll.jail.walls import syscalls as sys
from atoll.jail.walls.copytree import copy_tree

if TYPE_CHECKING:
    from collections.abc import Callable

BOX = "/.box"
"""Where the tmpfs is mounted while it is made; an empty folder otherwise."""
PRIVATE_FOLDERS = {"app": WORK_FOLDER, "tmp": "/tmp", "shm": "/dev/shm", "home": GUEST_HOME}
DEFAULT_DISK = 1 << 40
MAX_INODES = 65_536


def mount_box(
    root: str,
    disk: int | None,
    owner: int | None,
    *,
    private_app: bool,
    fill: Callable[[str, str], None] | None = None,
    tmpfs: int | None = None,
) -> None:
    """The private folders: one tmpfs with the disk limit as its size.

    `tmpfs`: one that has the upper layer of an image's root already, so that the limit counts both.
    """
    box = root + BOX
    if tmpfs is None:
        sys.mount("tmpfs", box, "tmpfs", sys.MS_NOSUID | sys.MS_NODEV, box_options(disk))
    else:
        sys.attach_tree(tmpfs, box)
        os.close(tmpfs)
    fill_box(box, root, owner, private_app=private_app, fill=fill)
    sys.detach(box)


def fill_box(
    box: str,
    root: str,
    owner: int | None,
    *,
    private_app: bool = True,
    fill: Callable[[str, str], None] | None = None,
) -> None:
    """Make the private folders in a tmpfs, and mount each at its place in a root.

    `owner` is None if that is this user. `fill` is given the place and the folder, and puts into it
    what belongs there.
    """
    for name, target in PRIVATE_FOLDERS.items():
        if name == "app" and not private_app:
            continue
        folder = f"{box}/{name}"
        os.mkdir(folder, 0o700)
        if owner is not None:
            os.chown(folder, owner, owner)
        if fill is not None:
            fill(target, folder)
        sys.mount(folder, root + target, None, sys.MS_BIND)  # nosuid and nodev as the tmpfs is


def box_options(disk: int | None) -> str:
    """Return how a tmpfs is mounted that has the disk limit as its size."""
    size = disk if disk is not None else DEFAULT_DISK
    return f"size={size},nr_inodes={MAX_INODES},mode=755"


def resize_box(root: str, disk: int) -> None:
    """Limit private folders that are mounted already; they are one file system."""
    flags = sys.MS_REMOUNT | sys.MS_NOSUID | sys.MS_NODEV
    try:
        sys.mount(None, root + WORK_FOLDER, None, flags, f"size={disk}")
    except OSError as exc:  # EINVAL: more is in use
        raise (_too_large() if exc.errno == errno.EINVAL else exc) from exc


def copy_own(image: str, target: str, folder: str, owner: int) -> None:
    """Copy what an image has in the working folder and at home: the guest has it as its own."""
    if target not in (WORK_FOLDER, GUEST_HOME):
        return
    try:
        copy_tree(image + target, folder, owner)
    except OSError as exc:
        raise (_too_large() if exc.errno == errno.ENOSPC else exc) from exc


def _too_large() -> OSError:
    text = f"the image's files in {WORK_FOLDER} and {GUEST_HOME} do not fit into disk_bytes"
    return OSError(errno.ENOSPC, text)
