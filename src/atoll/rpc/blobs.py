"""Bytes beside a message: sealed memory files that are passed as descriptors, not in the JSON.

SECURITY: a received descriptor is read only if it is a memory file whose content and size are
sealed; anything else could block the reader, or change while it is read.
"""

from __future__ import annotations

import mmap
import os

from atoll.errors import ConfigError

Buffer = bytes | bytearray | memoryview
MAX_BLOB_BYTES = 1 << 30
SEALS = 0x2 | 0x4 | 0x8  # F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE


def write(data: Buffer) -> int:
    """Return a sealed memory file that holds `data`."""
    fd = os.memfd_create("atoll-blob", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
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
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as view:
            return view[:]
    finally:
        os.close(fd)


def seal(fd: int) -> None:
    """Make content and size of a memory file unchangeable."""
    import fcntl  # noqa: PLC0415 - Windows, which can use a remote sandbox, does not have it

    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)


def is_sealed(fd: int) -> bool:
    """Return whether it is a memory file whose content and size are sealed."""
    import fcntl  # noqa: PLC0415 - as above

    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS
    except OSError:
        return False
