"""Lets a host that is root use files with the rights of their owner, and no more."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_libc = ctypes.CDLL(None)
_SETGROUPS = {"x86_64": 116, "aarch64": 159}
_ASK = -1
"""An invalid id: setfsuid and setfsgid then change nothing and return the present id."""


@contextlib.contextmanager
def acting_as_owner(folder: int) -> Iterator[None]:
    """Use files as the folder's owner, in this thread alone; no change unless this is root.

    A file system that a zygote host mounted refuses files of users that are not in its namespace.
    """
    info = os.fstat(folder)
    if os.geteuid() != 0 or info.st_uid == 0:
        yield
        return
    group, user, groups = _libc.setfsgid(_ASK), _libc.setfsuid(_ASK), os.getgroups()
    try:
        _set_groups([])
        _libc.setfsgid(info.st_gid)
        _libc.setfsuid(info.st_uid)
        _check(info.st_uid, info.st_gid)
        yield
    finally:
        _libc.setfsuid(user)
        _libc.setfsgid(group)
        _set_groups(groups)


def _set_groups(groups: list[int]) -> None:
    """Set the groups of this thread alone; the C library's setgroups sets those of all threads."""
    array = (ctypes.c_uint32 * len(groups))(*groups)
    number = _SETGROUPS.get(platform.machine())
    if number is None or _libc.syscall(ctypes.c_long(number), len(groups), array):
        raise PermissionError(errno.EPERM, "cannot act as the owner of the working folder")


def _check(user: int, group: int) -> None:
    """Raise PermissionError if the kernel did not set these ids: setfsuid reports no error."""
    if (_libc.setfsuid(_ASK), _libc.setfsgid(_ASK)) != (user, group):
        raise PermissionError(errno.EPERM, "cannot act as the owner of the working folder")
