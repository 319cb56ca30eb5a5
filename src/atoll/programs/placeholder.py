"""Names in the place of denied paths that do not exist, so that a mount can cover them.

A name is that of a socket without a server: a program that opens it gets an error at once, and git
does not add it to a commit.

SECURITY: another program may run in the same folder and change links there, so names are made and
removed in descriptors of folders, which no link can lead elsewhere. When a name is removed, the
kernel removes the mounts on it in every jail. So each run holds a lock on the folder, and the last
one removes the name. The sticky bit marks ours, so the next run removes what a crash has left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.jail.walls.syscalls import open_place

if TYPE_CHECKING:
    from pathlib import Path

_MODE, _FOLDER = stat.S_ISVTX | 0o444, stat.S_ISVTX | 0o755
_TRIES, _WAIT_SECONDS = 200, 0.005
_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Placeholders:
    """The names that one run needs; they are removed at the end."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._locked: dict[tuple[int, int], tuple[int, list[str]]] = {}
        """By device and inode of a folder: the lock on it, and the names in it."""

    def make(self, top: Path, path: Path) -> bool:
        """Return whether there is nothing at a path below `top` but a name of ours, made now.

        The folders above it that are missing are made too.
        """
        try:
            return path != top and self._make(top, path)
        except OSError as exc:
            why = f"cannot deny {path}, which does not exist yet: {exc.strerror}"
            raise ConfigError(why) from exc

    def close(self) -> None:
        """Remove the names that no other run needs."""
        for lock, names in self._locked.values():
            _remove(lock, names)
        self._stack.close()

    def _make(self, top: Path, path: Path) -> bool:
        at = self._keep(open_place(str(top)))
        *folders, name = path.relative_to(top).parts
        for folder in folders:
            inner = _open_folder(at, folder)
            if _is_ours(os.fstat(inner)):
                self._stack.callback(_remove_folder, at, folder)
            at = self._keep(inner)
        info = os.fstat(at)
        key = info.st_dev, info.st_ino
        if key not in self._locked:
            self._locked[key] = self._keep(_lock(at)), []
        lock, names = self._locked[key]
        with contextlib.suppress(FileExistsError):
            os.mknod(name, stat.S_IFSOCK | _MODE, dir_fd=lock)
        if not _is_ours(os.stat(name, dir_fd=lock, follow_symlinks=False)):
            return False
        names.append(name)
        return True

    def _keep(self, fd: int) -> int:
        self._stack.callback(os.close, fd)
        return fd


def _open_folder(at: int, name: str) -> int:
    """Return a folder, which is made if it is missing."""
    try:
        os.mkdir(name, dir_fd=at)
    except FileExistsError:
        return os.open(name, _ENTER, dir_fd=at)
    fd = os.open(name, _ENTER, dir_fd=at)
    os.fchmod(fd, _FOLDER)
    return fd


def _lock(at: int) -> int:
    """Return a folder with a lock on it that other runs share."""
    lock = os.open(".", _ENTER, dir_fd=at)
    for _ in range(_TRIES):  # another run holds it alone while it removes its names
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return lock
        time.sleep(_WAIT_SECONDS)
    os.close(lock)
    raise OSError(errno.EBUSY, "another program holds a lock on its folder")


def _is_ours(info: os.stat_result) -> bool:
    if stat.S_ISDIR(info.st_mode):
        return stat.S_IMODE(info.st_mode) == _FOLDER
    return stat.S_ISSOCK(info.st_mode) and bool(info.st_mode & stat.S_ISVTX)


def _remove(folder: int, names: list[str]) -> None:
    with contextlib.suppress(OSError):  # another run holds it
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                if _is_ours(os.stat(name, dir_fd=folder, follow_symlinks=False)):
                    os.unlink(name, dir_fd=folder)


def _remove_folder(at: int, name: str) -> None:
    """Remove a folder that was made for a placeholder; one that has other files stays."""
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=at)
