"""Empty files in the place of denied paths that do not exist, so that a mount can cover them.

SECURITY: another program may run in the same folder and change links there, so names are made and
removed in descriptors of folders, which no link can lead elsewhere. When a file is removed, the
kernel removes the mounts on it in every jail. So each run holds a lock on the file, and the last
one that lets go of it removes the file. The sticky bit, which has no meaning for a file, marks
ours, so the next run removes what a crash has left.
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
    from collections.abc import Iterator
    from pathlib import Path

_FILE, _FOLDER = stat.S_ISVTX | 0o444, stat.S_ISVTX | 0o755
_TRIES, _WAIT_SECONDS = 200, 0.005
_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextlib.contextmanager
def placeholder(top: Path, path: Path) -> Iterator[bool]:
    """Return whether there is nothing at a path below `top` but an empty file, made for this block.

    The folders above it that are missing are made too.
    """
    with contextlib.ExitStack() as stack:
        try:
            new = path != top and _enter(stack, top, path)
        except OSError as exc:
            why = f"cannot deny {path}, which does not exist yet: {exc.strerror}"
            raise ConfigError(why) from exc
        yield new


def _enter(stack: contextlib.ExitStack, top: Path, path: Path) -> bool:
    """Go to a path by descriptors, and lock a placeholder there; False if there is a file."""
    at = open_place(str(top))
    stack.callback(os.close, at)
    *folders, name = path.relative_to(top).parts
    for folder in folders:
        inner = _open_folder(at, folder)
        if _is_ours(os.fstat(inner)):
            stack.callback(_remove_folder, at, folder)
        stack.callback(os.close, inner)
        at = inner
    fd = _locked(at, name)
    if fd is not None:
        stack.callback(_remove_file, at, name, fd)
    return fd is not None


def _open_folder(at: int, name: str) -> int:
    """Return a folder, which is made if it is missing."""
    try:
        os.mkdir(name, dir_fd=at)
    except FileExistsError:
        return os.open(name, _ENTER, dir_fd=at)
    fd = os.open(name, _ENTER, dir_fd=at)
    os.fchmod(fd, _FOLDER)
    return fd


def _locked(at: int, name: str) -> int | None:
    """Return a placeholder, locked, so that no other run removes it; None if a file is there."""
    for _ in range(_TRIES):
        try:
            fd = os.open(name, _CREATE, 0o444, dir_fd=at)
            os.fchmod(fd, _FILE)
        except FileExistsError:
            if not _is_ours(os.stat(name, dir_fd=at, follow_symlinks=False)):
                return None
            fd = os.open(name, _OPEN, dir_fd=at)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if _is_at(at, name, fd):
                return fd
        os.close(fd)  # another run removes it
        time.sleep(_WAIT_SECONDS)
    raise OSError(errno.EBUSY, "another program holds a lock on it")


def _is_ours(info: os.stat_result) -> bool:
    if stat.S_ISDIR(info.st_mode):
        return stat.S_IMODE(info.st_mode) == _FOLDER
    return stat.S_ISREG(info.st_mode) and stat.S_IMODE(info.st_mode) == _FILE and not info.st_size


def _is_at(at: int, name: str, fd: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=at, follow_symlinks=False))
    return False


def _remove_file(at: int, name: str, fd: int) -> None:
    with contextlib.suppress(OSError):  # another run holds it
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(at, name, fd) and _is_ours(os.fstat(fd)):
            os.unlink(name, dir_fd=at)
    os.close(fd)


def _remove_folder(at: int, name: str) -> None:
    """Remove a folder that was made for a placeholder; one that has other files stays."""
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=at)
