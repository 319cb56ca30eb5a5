"""Files used as their owner would: a host that is root does nothing that a guest could not."""

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
"""No user: nothing is changed, and who it is now is told."""


@contextlib.contextmanager
def acting_as_owner(folder: int) -> Iterator[None]:
    """In this thread alone, be the folder's owner towards files. Who is not root stays as is.

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
    """Of this thread alone, which the C library's own function does not do."""
    array = (ctypes.c_uint32 * len(groups))(*groups)
    number = _SETGROUPS.get(platform.machine())
    if number is None or _libc.syscall(ctypes.c_long(number), len(groups), array):
        raise PermissionError(errno.EPERM, "cannot act as the owner of the working folder")


def _check(user: int, group: int) -> None:
    """The kernel does not say that it refused: a user that is not known here, say."""
    if (_libc.setfsuid(_ASK), _libc.setfsgid(_ASK)) != (user, group):
        raise PermissionError(errno.EPERM, "cannot act as the owner of the working folder")
