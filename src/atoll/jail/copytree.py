"""Copies a folder that a guest has made, whatever is in it: no link is followed, holes stay holes.

Only descriptors lead the way down, so no path grows with the depth. Devices and sockets are
left out.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_tree(source: str, target: str) -> None:
    """Copy what is in `source` into the empty folder `target`; OSError if there is no room."""
    waiting = [(os.open(source, _FOLDER), os.open(target, _FOLDER))]
    while waiting:
        here, there = waiting.pop()
        try:
            for name in os.listdir(here):
                pair = _copy_entry(name, here, there)
                if pair is not None:
                    waiting.append(pair)
        finally:
            os.close(here)
            os.close(there)


def _copy_entry(name: str, here: int, there: int) -> tuple[int, int] | None:
    """Copy one thing; a folder is made, and returned to be gone through."""
    info = os.stat(name, dir_fd=here, follow_symlinks=False)
    mode = stat.S_IMODE(info.st_mode)
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
    elif stat.S_ISREG(info.st_mode):
        _copy_file(name, here, there, info)
    elif stat.S_ISFIFO(info.st_mode):
        os.mkfifo(name, mode, dir_fd=there)
    elif stat.S_ISDIR(info.st_mode):
        os.mkdir(name, mode | 0o700, dir_fd=there)
        return os.open(name, _FOLDER, dir_fd=here), os.open(name, _FOLDER, dir_fd=there)
    return None


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
