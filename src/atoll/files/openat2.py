"""Opens paths below a folder with openat2: the kernel refuses every path that leads out."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_OPENAT2 = 437
_NO_MAGICLINKS, _BENEATH = 0x02, 0x08
_RETRIES = 64
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def open_beneath(folder: int, path: str, flags: int, mode: int = 0) -> int:
    """Return a descriptor of `path` below the folder; links are followed while they stay inside.

    A path that leads out is EXDEV. EAGAIN (something was moved meanwhile) is retried.
    """
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, _BENEATH | _NO_MAGICLINKS)
    name = os.fsencode(path)
    for _ in range(_RETRIES):
        fd = _syscall(_OPENAT2, folder, name, how, ctypes.c_size_t(len(how)))
        if fd >= 0:
            return int(fd)
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code), path)
