"""Copies a folder that a guest has made, whatever is in it: no link is followed, holes stay holes.

Only descriptors lead the way down, so no path grows with the depth. Devices and sockets are
left out.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass

OPAQUE = "user.overlay.opaque"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Level:
    """A folder that is being gone through: which one it is, and what in it is still to be."""

    inode: tuple[int, int]
    mode: int
    subfolders: list[str]


def copy_tree(
    source: str | int, target: str, owner: int | None = None, *, layer: bool = False
) -> None:
    """Copy the contents of `source` into the empty folder `target`; OSError if it does not fit.

    Only what this user owns is copied, and nothing that is mounted there. If `owner` is given, only
    what that user owns, who owns the copies, too; it is for an image, whose files an overlay shows
    as those of several devices. `layer`: it is the upper layer of an overlay, which marks what is
    deleted.
    """
    here = os.dup(source) if isinstance(source, int) else os.open(source, _FOLDER)
    there = os.open(target, _FOLDER)
    try:
        levels = [_enter(here, there, owner, layer=layer)]
        while levels:
            if levels[-1].subfolders:
                name = levels[-1].subfolders.pop()
                here, there = _step(here, name), _step(there, name)
                levels.append(_enter(here, there, owner, layer=layer))
                continue
            os.fchmod(there, levels.pop().mode)
            if levels:
                here, there = _step(here, ".."), _step(there, "..")
                _require_same(here, levels[-1])
    finally:
        os.close(here)
        os.close(there)


def _enter(here: int, there: int, owner: int | None, *, layer: bool) -> _Level:
    """Copy the contents of a folder, and make the folders that are in it."""
    info = os.fstat(here)
    names = os.listdir(here)
    if layer:
        names = [name for name in names if not _copy_whiteout(name, here, there)]
        _copy_opacity(here, there)
    subfolders = [name for name in names if _copy_entry(name, here, there, owner)]
    return _Level((info.st_dev, info.st_ino), stat.S_IMODE(info.st_mode), subfolders)


def _step(folder: int, name: str) -> int:
    """From a folder to the next: two descriptors are enough for any depth and any width."""
    inner = os.open(name, _FOLDER, dir_fd=folder)
    os.close(folder)
    return inner


def _require_same(here: int, level: _Level) -> None:
    info = os.fstat(here)
    if (info.st_dev, info.st_ino) != level.inode:
        raise OSError(errno.ESTALE, "a folder was moved while it was copied")


def _copy_entry(name: str, here: int, there: int, owner: int | None) -> bool:
    """Copy one thing; whether it is a folder, which is made and has to be gone through."""
    info = os.stat(name, dir_fd=here, follow_symlinks=False)
    if info.st_uid != (os.geteuid() if owner is None else owner):
        return False
    if owner is None and info.st_dev != os.fstat(here).st_dev:
        return False  # something of the host's, mounted there: no guest made it
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
    elif stat.S_ISREG(info.st_mode):
        _copy_file(name, here, there, info)
    elif stat.S_ISFIFO(info.st_mode):
        os.mkfifo(name, dir_fd=there)
        os.chmod(name, stat.S_IMODE(info.st_mode), dir_fd=there)
    elif stat.S_ISDIR(info.st_mode):
        os.mkdir(name, 0o700, dir_fd=there)
    else:
        return False
    if owner is not None:
        os.chown(name, owner, owner, dir_fd=there, follow_symlinks=False)
    return stat.S_ISDIR(info.st_mode)


def _copy_whiteout(name: str, here: int, there: int) -> bool:
    """Copy what marks a deleted file, a device that anyone may make; return whether it was one."""
    info = os.stat(name, dir_fd=here, follow_symlinks=False)
    if not stat.S_ISCHR(info.st_mode) or info.st_rdev:
        return False
    os.mknod(name, stat.S_IFCHR, 0, dir_fd=there)
    return True


def _copy_opacity(here: int, there: int) -> None:
    """Copy whether a folder hides that of the lower layers."""
    with contextlib.suppress(OSError):  # most have no such attribute
        os.setxattr(there, OPAQUE, os.getxattr(here, OPAQUE))


def _copy_file(name: str, here: int, there: int, info: os.stat_result) -> None:
    source = os.open(name, _READ, dir_fd=here)
    target = os.open(name, _CREATE, stat.S_IMODE(info.st_mode) | 0o600, dir_fd=there)
    try:
        os.ftruncate(target, info.st_size)
        at = 0
        while (span := _next_data(source, at)) is not None:
            at = _copy_span(source, target, *span)
        os.fchmod(target, stat.S_IMODE(info.st_mode))
        os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
    finally:
        os.close(source)
        os.close(target)


def _next_data(fd: int, at: int) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        start = os.lseek(fd, at, os.SEEK_DATA)
        return start, os.lseek(fd, start, os.SEEK_HOLE)
    return None


def _copy_span(source: int, target: int, start: int, end: int) -> int:
    os.lseek(target, start, os.SEEK_SET)
    while start < end:
        sent = os.sendfile(target, source, start, end - start)
        if not sent:
            raise OSError(errno.EIO, "a file became shorter while it was copied")
        start += sent
    return start
