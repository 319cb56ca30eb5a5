"""Bytes beside a message: sealed memory files that are passed as descriptors, not in the JSON.

SECURITY: a received descriptor is read only if it is a memory file whose content and size are
sealed; anything else could block the reader, or change while it is read.

Systems other than Linux, which can use a remote sandbox, have no such files: there, bytes are in a
temporary file without a name, and none is accepted from another process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys

from atoll.errors import ConfigError

if sys.platform == "linux":
    import fcntl

Buffer = bytes | bytearray | memoryview
MAX_BLOB_BYTES = 1 << 30
SEALS = 0x2 | 0x4 | 0x8  # F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE


def create(name: str) -> int:
    """Return an empty memory file."""
    if sys.platform == "linux":
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        import tempfile  # noqa: PLC0415 - only here, and it takes long

        with tempfile.TemporaryFile(prefix=name) as file:
            fd = os.dup(file.fileno())
    return fd


def write(data: Buffer) -> int:
    """Return a sealed memory file that holds `data`."""
    fd = create("atoll-blob")
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    seal(fd)
    return fd


def read(fd: int, most: int = MAX_BLOB_BYTES) -> bytes:
    """Return the content of a sealed memory file of at most `most` bytes, and close it."""
    try:
        size = os.fstat(fd).st_size if is_sealed(fd) else -1
        if not 0 <= size <= most:
            raise ConfigError(f"no sealed memory file of at most {most:,} bytes")
        if size == 0:
            return b""
        with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as view:
            return view[:]
    finally:
        os.close(fd)


def seal(fd: int) -> None:
    """Make content and size of a memory file unchangeable."""
    if sys.platform == "linux":
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)


def is_sealed(fd: int) -> bool:
    """Return whether it is a memory file whose content and size are sealed."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS
    return False
