"""Writable roots of forked guests: each has an overlay of its own over the root that all share.

    /               the zygote's root: an image's files, read-only, and what is mounted there
    /.image         the same files without the mounts: the lower layer
    /.box           a tmpfs of the guest's, with the disk limit as its size
       upper, work  what the guest has changed
       root         the overlay, with the same mounts: the guest's root
       app, tmp ... its private folders

SECURITY: the guest is confined to `root` by chroot, in a copy of the mount namespace, so it cannot
reach its upper layer. The folders that lead to mount points are in the lower layer, and an overlay
renames none of those; still, no link is followed on the way to one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from atoll.jail.walls import syscalls as sys
from atoll.jail.walls.copytree import copy_tree
from atoll.jail.walls.private_folders import BOX, PRIVATE_FOLDERS, box_options, copy_own, fill_box
from atoll.jail.walls.root import IMAGE, JAIL_DEVICES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from atoll.jail.supervisor.spec import Bind

ROOT = f"{BOX}/root"
UPPER, _WORK = f"{BOX}/upper", f"{BOX}/work"
_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def build(binds: tuple[Bind, ...], owner: int, *, own_files: bool) -> None:
    """Make the root of a guest that is still to be forked, with what the image has in /app."""

    def fill(target: str, folder: str) -> None:
        if own_files:
            copy_own(IMAGE, target, folder, owner)

    _mount(None, owner)
    _carry(".", [*_mounted(binds), "/dev/pts"])
    fill_box(BOX, ROOT, owner, fill=fill)


def build_again(binds: tuple[Bind, ...], disk: int | None, before_copy: Callable[[], None]) -> None:
    """Make the root of a live clone, with copies of what its origin has changed.

    This process is the guest's user, and the mounts of its namespace are the origin's.
    `before_copy` is called if there is something to copy.
    """
    upper, old = os.open(UPPER, _FOLDER), os.open(ROOT, _WAY)
    os.fchdir(old)  # relative names lead into the origin's root from now on
    if os.listdir(upper) or any(os.listdir(f".{path}") for path in PRIVATE_FOLDERS.values()):
        before_copy()

    def fill(target: str, folder: str) -> None:
        copy_tree(f".{target}", folder)

    _mount(disk, None, upper)
    _carry("", _mounted(binds))
    _carry(".", ["/proc", "/dev/pts"])
    fill_box(BOX, ROOT, None, fill=fill)
    os.chdir("/")
    for fd in (upper, old):
        os.close(fd)


def _mount(disk: int | None, owner: int | None, changed: int | None = None) -> None:
    """Mount the tmpfs and the overlay; `changed` is an upper layer to copy."""
    flags = sys.MS_NOSUID | sys.MS_NODEV
    sys.mount("tmpfs", BOX, "tmpfs", flags, box_options(disk))
    for folder in (UPPER, _WORK, ROOT):
        os.mkdir(folder, 0o755)
    if owner is not None:
        os.chown(UPPER, owner, owner)
    if changed is not None:
        copy_tree(changed, UPPER, layer=True)
    options = f"lowerdir={IMAGE},upperdir={UPPER},workdir={_WORK},userxattr"
    sys.mount("overlay", ROOT, "overlay", flags, options)


def _mounted(binds: tuple[Bind, ...]) -> list[str]:
    """Return what is mounted in the shared root, each after what it is in."""
    targets = sorted((bind.target for bind in binds), key=lambda path: path.count("/"))
    return [*(f"/dev/{name}" for name in JAIL_DEVICES), *targets]


def _carry(source: str, paths: Iterable[str]) -> None:
    """Bind what is mounted at paths below `source` at the same paths of the new root."""
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for path in paths:
        tree = sys.clone_tree(source + path, recursive=True)
        *way, name = path[1:].split("/")
        os.chdir(ROOT)
        for folder in way:
            fd = os.open(folder, _WAY)
            os.fchdir(fd)
            os.close(fd)
        sys.attach_tree(tree, name)
        os.close(tree)
        os.fchdir(here)
    os.close(here)
