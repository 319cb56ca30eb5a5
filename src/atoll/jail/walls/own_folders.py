"""Further folders of a guest, at any path: a new root that has a mount point for each.

SECURITY: the new root is a read-only tmpfs with binds of what the old one holds, each with all that
is mounted below it; so nothing becomes visible or writable but the new folders. They are kept
in the file system of the private folders, whose size is the disk limit.
"""

from __future__ import annotations

import os
import stat

from atoll.jail.supervisor.spec import WORK_ALIAS, WORK_FOLDER
from atoll.jail.walls import syscalls as sys
from atoll.jail.walls.private_folders import BOX, PRIVATE_FOLDERS

STORE = f"{PRIVATE_FOLDERS['shm']}/.folders"
"""Where their files are: below a private folder, so that a live clone gets copies of them."""


def add(folders: tuple[str, ...], owner: int) -> None:
    """Mount the folders in a new root, and go into it; parents are made."""
    new = BOX
    os.mkdir(STORE, 0o700)
    os.chown(STORE, owner, owner)
    flags = sys.MS_NOSUID | sys.MS_NODEV
    sys.mount("tmpfs", new, "tmpfs", flags, "mode=755,size=4m")
    _copy("", new, folders)
    for number, folder in enumerate(folders):
        store = f"{STORE}/{number}"
        os.mkdir(store, 0o755)
        os.chown(store, owner, owner)
        if folder == os.path.dirname(WORK_ALIAS):
            os.symlink(WORK_FOLDER, f"{store}/{os.path.basename(WORK_ALIAS)}")
        os.makedirs(new + folder, exist_ok=True)
        sys.mount(store, new + folder, None, sys.MS_BIND)
    sys.set_mount_attributes(new, sys.ATTR_RDONLY, recursive=False)
    os.chdir(new)
    sys.pivot_root(".", ".")
    sys.detach(".")
    os.chdir("/")


def mount_again(folders: tuple[str, ...]) -> None:
    """Mount the copies of a live clone where its origin has its folders."""
    for number, folder in enumerate(folders):
        sys.mount(f"{STORE}/{number}", folder, None, sys.MS_BIND)


def _copy(path: str, new: str, folders: tuple[str, ...]) -> None:
    """Bind what is at a path below a new root; what leads to a new folder is made anew."""
    try:
        names = os.listdir(path or "/")
    except PermissionError as exc:  # it leads to the interpreter, and is not listed
        text = f"no folder can be made in {path}, which files of the host are in: choose another"
        raise OSError(exc.errno, text) from None
    for name in names:
        source = f"{path}/{name}"
        target = new + source
        mode = os.lstat(source).st_mode
        if source in folders:
            continue  # it takes the place of this
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(source), target)
        elif not stat.S_ISDIR(mode):
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
            sys.mount(source, target, None, sys.MS_BIND)
        else:
            os.mkdir(target)
            if any(folder.startswith(f"{source}/") for folder in folders):
                _copy(source, new, folders)
                os.chmod(target, stat.S_IMODE(mode) | 0o555)  # noqa: S103 - as the old one
            elif source != new:
                sys.mount(source, target, None, sys.MS_BIND | sys.MS_REC)
