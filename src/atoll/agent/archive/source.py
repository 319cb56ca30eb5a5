"""The archive's bytes: a descriptor on the host, a file object in the reading process."""

from __future__ import annotations

import io
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

from atoll.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed import WriteableBuffer

    from atoll.agent.archive.types import ArchiveLimits

_PIECE = 1 << 20


def as_descriptor(source: bytes | BinaryIO, limits: ArchiveLimits) -> int:
    """Return a new descriptor of a file or of memory, which the caller closes."""
    if isinstance(source, bytes | bytearray | memoryview):
        return _in_memory([source], limits)
    raw = source.raw if isinstance(source, io.BufferedReader) else source
    if isinstance(raw, io.FileIO) and stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        limits.check("max_archive_bytes", os.fstat(raw.fileno()).st_size, "the archive in bytes")
        return os.dup(raw.fileno())
    source.seek(0)
    return _in_memory(iter(lambda: source.read(_PIECE), b""), limits)


def _in_memory(pieces: Iterable[bytes], limits: ArchiveLimits) -> int:
    fd = os.memfd_create("atoll-archive", os.MFD_CLOEXEC)
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            limits.check("max_archive_bytes", size, "the archive in bytes")
            with memoryview(piece) as rest:
                done = 0
                while done < len(rest):
                    done += os.write(fd, rest[done:])
    except BaseException:
        os.close(fd)
        raise
    return fd


class Source(io.RawIOBase):
    """Reads a descriptor with pread, because its offset is shared; not beyond its first size."""

    def __init__(self, fd: int, limits: ArchiveLimits) -> None:
        self._fd, self._limits = fd, limits
        self.size = os.fstat(fd).st_size
        self._at = 0
        self.in_headers = False
        """Whether a read is of a header, which has its own limit."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Return `size` bytes, or all that follow."""
        left = max(self.size - self._at, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        if self.in_headers:
            self._limits.check("max_header_bytes", wanted, "a header in bytes")
        pieces = []
        while wanted and (piece := os.pread(self._fd, wanted, self._at)):
            pieces.append(piece)
            wanted, self._at = wanted - len(piece), self._at + len(piece)
        return b"".join(pieces)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read into a buffer."""
        with memoryview(buffer).cast("B") as view:
            data = self.read(len(view))
            view[: len(data)] = data
            return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to an offset."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ArchiveError("the archive is damaged: it refers to a negative offset")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the offset."""
        return self._at
