"""Unpacks gzip, bzip2, xz and zstd in pieces, and counts the output before keeping it.

SECURITY: a few bytes may unpack to gigabytes, or need gigabytes of memory to unpack.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
import zlib
from typing import TYPE_CHECKING, Any, Protocol

from atoll.errors import ArchiveError, ArchiveLimitError
from atoll.extras import hint

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import WriteableBuffer

    from atoll.agent.archive.types import ArchiveLimits, Clock

PIECE = 1 << 16


class Decompressor(Protocol):
    """The interface of the decompressors of bz2 and lzma."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether nothing more comes out without more going in."""

    @property
    def unused_data(self) -> bytes:
        """What follows the stream."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """At most so many bytes more."""


class Zlib:
    """zlib's object with the interface of the others; `wbits` 31: gzip, 15: zlib, -15: raw."""

    def __init__(self, wbits: int = 31) -> None:
        self._inner = zlib.decompressobj(wbits)

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        """Whether nothing more comes out without more going in."""
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        """What follows the stream."""
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """At most so many bytes more."""
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


class Inflated(io.RawIOBase):
    """A packed file, unpacked while it is read; seeking backwards starts from the beginning."""

    def __init__(self, source: Any, kind: str, limits: ArchiveLimits, clock: Clock) -> None:
        self._source, self._limits, self._clock = source, limits, clock
        self._make = maker(kind, limits)
        self._begin()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True; seeking is slow."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read the next bytes into the buffer; 0 at the end."""
        with memoryview(buffer).cast("B") as view:
            data = self._next(min(len(view), PIECE))
            view[: len(data)] = data
        self._at += len(data)
        self._limits.check("max_total_bytes", self._at, "what comes out in bytes")
        self._limits.check_ratio(self._at, self._source.tell(), "the archive")
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to an offset by unpacking everything before it."""
        if whence == os.SEEK_END:
            raise io.UnsupportedOperation("the end is not known")
        target = offset + (self._at if whence == os.SEEK_CUR else 0)
        if target < self._at:
            self._begin()
        while self._at < target and self.read(min(target - self._at, PIECE)):
            pass
        return self._at

    def tell(self) -> int:
        """Return the offset."""
        return self._at

    def _begin(self) -> None:
        self._source.seek(0)
        self._stream, self._at, self._rest = self._make(), 0, b""

    def _next(self, size: int) -> bytes:
        while True:
            self._clock.check()
            if self._stream.eof and not self._next_stream():
                return b""
            packed = self._feed()
            if data := self._unpack(packed, size):
                return data
            if not packed and self._stream.needs_input and not self._stream.eof:
                raise ArchiveError("the archive is cut off: its packed data ends too early")

    def _feed(self) -> bytes:
        packed, self._rest = self._rest, b""
        if packed or not self._stream.needs_input:
            return packed
        return bytes(self._source.read(PIECE))

    def _unpack(self, packed: bytes, size: int) -> bytes:
        try:
            return self._stream.decompress(packed, size)
        except lzma.LZMAError as exc:
            if "emory usage limit" in str(exc):
                most = self._limits.max_memory_bytes
                raise ArchiveLimitError(
                    "max_memory_bytes", most=most, what="what xz needs"
                ) from None
            raise

    def _next_stream(self) -> bool:
        """Begin the next stream: several may follow each other, with zeros between them."""
        rest = self._stream.unused_data.lstrip(b"\0")
        while not rest:
            self._clock.check()
            piece = self._source.read(PIECE)
            if not piece:
                return False
            rest = bytes(piece).lstrip(b"\0")
        self._stream, self._rest = self._make(), rest
        return True


def maker(kind: str, limits: ArchiveLimits) -> Callable[[], Decompressor]:
    """Return a function that makes a decompressor of this kind: gz, bz2, xz, zst."""
    if kind == "gz":
        return Zlib
    if kind == "bz2":
        return bz2.BZ2Decompressor
    if kind == "xz":
        most = limits.max_memory_bytes // 2  # the rest of the process needs some too
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=most)
    return _zstd()


def load_unpacker(kind: str) -> None:
    """Import the module that unpacks this kind; ArchiveError if it is missing."""
    if kind == "zst":
        _zstd()


def _zstd() -> Callable[[], Decompressor]:
    try:
        from compression import zstd  # type: ignore[import-not-found] # noqa: PLC0415 - 3.14
    except ImportError:
        try:
            from backports import zstd  # noqa: PLC0415 - an extra
        except ImportError:
            needs = "zstd needs Python 3.14 or backports.zstd"
            raise ArchiveError(f"{needs}. {hint('archive')}") from None
    make: Callable[[], Decompressor] = zstd.ZstdDecompressor
    return make
