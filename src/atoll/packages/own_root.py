"""A root file system of the downloader's own, for kernels without Landlock.

SECURITY: it contains only the paths that are bound, read-only except for the scratch folder. The
network is the host's.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from atoll.jail.walls import syscalls
from atoll.jail.walls.root import NEW_ROOT, READ_ONLY
from atoll.jail.walls.syscalls import ATTR_RDONLY, MS_BIND, MS_NODEV, MS_NOSUID, MS_PRIVATE, MS_REC


def enter(readable: list[str], scratch: str, devices: list[str]) -> None:
    """Enter a root that contains these paths only; OSError if namespaces are not available."""
    _unshare()
    syscalls.mount(None, "/", None, MS_REC | MS_PRIVATE)
    ordered = sorted({*readable, *devices}, key=lambda path: path.count("/"))
    opened = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in [*ordered, scratch]]
    syscalls.mount("tmpfs", NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    for path, fd in opened:
        _bind(path, fd)
        if path not in {*devices, scratch}:
            syscalls.set_mount_attributes(NEW_ROOT + path, READ_ONLY, recursive=True)
    syscalls.set_mount_attributes(NEW_ROOT, ATTR_RDONLY, recursive=False)
    os.chdir(NEW_ROOT)
    syscalls.pivot_root(".", ".")
    syscalls.detach(".")


def _unshare() -> None:
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        return
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"),
                       ("gid_map", f"{gid} {gid} 1")):  # fmt: skip
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def _bind(path: str, fd: int) -> None:
    target = Path(NEW_ROOT + path)
    if not target.exists():  # otherwise its parent is already bound
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir() if stat.S_ISDIR(os.fstat(fd).st_mode) else target.touch()
    syscalls.mount(f"/proc/self/fd/{fd}", str(target), None, MS_BIND | MS_REC)
    os.close(fd)
