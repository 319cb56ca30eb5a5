"""An image's files as the root of a jail: an overlay of its layers, with our mount points on top.

    upper        a tmpfs: every mount point of ours, and with a writable root what the guest changes
    layer n..1   the image's, read-only, by descriptor
    base         the few files of /etc that programs expect, for images that lack them

SECURITY: the layers are hostile. Nothing is made or mounted through a path that leads through them.
Mount points are made in the upper layer before the overlay is mounted: a folder there hides a link
or a file of that name in the image, so no link of an image can move a mount. Host folders of layers
are bound by descriptor; set-user bits and devices of layers have no effect.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from atoll.jail.supervisor.spec import GUEST_HOME, GUEST_UID
from atoll.jail.walls import syscalls as sys
from atoll.jail.walls import users

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from atoll.jail.supervisor.spec import ImageRoot

UPPER, _WORK, _BASE, _ROOT = "upper", "work", "base", "root"
MOST_USERS = 1 << 20
_USERS = {
    "passwd": f"guest:x:{GUEST_UID}:{GUEST_UID}::{GUEST_HOME}:/bin/sh\n",
    "group": f"guest:x:{GUEST_UID}:\n",
}
"""The guest's own line, for images that have none for its id."""


def open_layers(image: ImageRoot, mapped_owner: int | None) -> list[int]:
    """Return detached mounts of the layers, the highest first; their owner is `mapped_owner`."""
    namespaces: dict[tuple[int, int], int] = {}
    trees = []
    for layer in reversed(image.layers):
        tree = sys.clone_tree(layer)
        trees.append(tree)
        if mapped_owner is not None:
            owner = os.stat(layer)
            key = owner.st_uid, owner.st_gid
            if key not in namespaces:
                namespaces[key] = users.idmap_namespace(*key, mapped_owner)
            with contextlib.suppress(OSError):  # a file system that cannot: what all may read stays
                sys.map_mount_ids(tree, namespaces[key])
    for namespace in namespaces.values():
        os.close(namespace)
    return trees


def mount(
    layers: list[int],
    at: str,
    options: str,
    *,
    points: Mapping[str, bool],
    links: Mapping[str, str],
    files: Mapping[str, str],
    owner: int,
) -> int:
    """Mount the overlay on `at`; return the detached tmpfs of its upper layer, of size `options`.

    `points` are the mount points, and whether each is a folder; `owner` owns the upper layer.
    """
    flags = sys.MS_NOSUID | sys.MS_NODEV
    sys.mount("tmpfs", at, "tmpfs", flags, options)
    for name in (UPPER, _WORK, _BASE, _ROOT):
        os.mkdir(f"{at}/{name}", 0o755)
    _make_points(f"{at}/{UPPER}", points, links, owner)
    _write_files(f"{at}/{_BASE}", files)
    lower = [*_attach_layers(at, layers), _BASE]
    here = os.open(".", os.O_PATH | os.O_DIRECTORY)
    os.chdir(at)  # relative names: the kernel takes a page of options
    parts = f"lowerdir={':'.join(lower)},upperdir={UPPER},workdir={_WORK},userxattr"
    sys.mount("overlay", _ROOT, "overlay", flags, parts)
    os.fchdir(here)
    os.close(here)
    _add_users(f"{at}/{_ROOT}/etc", owner)
    tmpfs, overlay = sys.clone_tree(at), sys.clone_tree(f"{at}/{_ROOT}")
    sys.detach(at)
    sys.attach_tree(overlay, at)
    os.close(overlay)
    return tmpfs


def _attach_layers(at: str, layers: list[int]) -> list[str]:
    names = [f"{number}" for number in range(len(layers))]
    for name, tree in zip(names, layers, strict=True):
        os.mkdir(f"{at}/{name}")
        sys.attach_tree(tree, f"{at}/{name}")
        os.close(tree)
    return names


def _make_points(
    upper: str, points: Mapping[str, bool], links: Mapping[str, str], owner: int
) -> None:
    for path, is_folder in points.items():
        parent = path if is_folder else os.path.dirname(path)
        os.makedirs(upper + parent, exist_ok=True)
        if not is_folder:
            os.close(os.open(upper + path, os.O_CREAT | os.O_CLOEXEC, 0o644))
    for path, target in links.items():
        os.symlink(target, upper + path)
    for folder, _, _ in os.walk(upper):
        os.chown(folder, owner, owner)


def _write_files(base: str, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        os.makedirs(base + os.path.dirname(path), exist_ok=True)
        with open(base + path, "w", encoding="ascii") as file:
            file.write(text)


def _add_users(folder: str, owner: int) -> None:
    """Add the guest's line to the image's users and groups. SECURITY: no link is followed."""
    etc = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in _USERS:
            text = _read(name, etc)
            if text is not None and (changed := with_guest(name, text)) != text:
                _replace(name, changed, etc, owner)
    finally:
        os.close(etc)


def with_guest(name: str, text: bytes) -> bytes:
    """Return the text of `passwd` or `group` with the guest's line, unless its id is in it."""
    if _has_id(text.splitlines()):
        return text
    return text + (b"\n" if text[-1:] not in (b"\n", b"") else b"") + _USERS[name].encode()


def _read(name: str, folder: int) -> bytes | None:
    """Return a small regular file of a folder; None if it is anything else."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=folder)
    except OSError:
        return None
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_USERS:
            return None
        return file.read(MOST_USERS)


def _has_id(lines: Iterable[bytes]) -> bool:
    wanted = b"%d" % GUEST_UID
    return any(line.split(b":")[2:3] == [wanted] for line in lines)


def _replace(name: str, data: bytes, folder: int, owner: int) -> None:
    os.unlink(name, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o644, dir_fd=folder), "wb") as file:
        file.write(data)
        os.fchown(file.fileno(), owner, owner)
