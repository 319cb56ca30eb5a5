"""Files used as their owner would: a host that is root does nothing that a guest could not."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_libc = ctypes.CDLL(None)
_ASK = -1
"""No user: nothing is changed, and who it is now is told."""


@contextlib.contextmanager
def acting_as_owner(folder: int) -> Iterator[None]:
    """In this thread alone, be the folder's owner towards files. Who is not root stays as is.

    A file system that was mounted by a guest's nursery takes no files of users it does not know.
    """
    info = os.fstat(folder)
    if os.geteuid() != 0 or info.st_uid == 0:
        yield
        return
    group, user = _libc.setfsgid(_ASK), _libc.setfsuid(_ASK)
    try:
        _libc.setfsgid(info.st_gid)
        _libc.setfsuid(info.st_uid)
        _check(info.st_uid, info.st_gid)
        yield
    finally:
        _libc.setfsuid(user)
        _libc.setfsgid(group)


def _check(user: int, group: int) -> None:
    """The kernel does not say that it refused: a user that is not known here, say."""
    if (_libc.setfsuid(_ASK), _libc.setfsgid(_ASK)) != (user, group):
        raise PermissionError(errno.EPERM, "cannot act as the owner of the working folder")
