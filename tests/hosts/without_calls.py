"""Execute a program under a seccomp filter for which some system calls do not exist.

    python without_calls.py NUMBER,NUMBER[:ERRNO] PROGRAM ARGUMENT ...

The errno is 38 (ENOSYS, as on an old kernel) unless given; 1 is EPERM, as of a container's filter.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

LOAD, EQUALS, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NO_NEW_PRIVILEGES, SECCOMP, MODE_FILTER = 38, 22, 2


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(numbers: list[int], errno: int) -> None:
    """Make the calls fail for this process and its descendants."""
    rows = [struct.pack("HBBI", LOAD, 0, 0, 0)]
    for number in numbers:
        rows.append(struct.pack("HBBI", EQUALS, 0, 1, number))
        rows.append(struct.pack("HBBI", RETURN, 0, 0, ERRNO | errno))
    rows.append(struct.pack("HBBI", RETURN, 0, 0, ALLOW))
    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(len(rows), b"".join(rows))
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.prctl(SECCOMP, MODE_FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "the filter was refused")


if __name__ == "__main__":
    listed, _, code = sys.argv[1].partition(":")
    install([int(number) for number in listed.split(",")], int(code or 38))
    os.execv(sys.argv[2], sys.argv[2:])
