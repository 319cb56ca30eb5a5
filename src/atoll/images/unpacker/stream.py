"""The bytes of a layer: plain, or packed by gzip or zstd; read forward, hashed, and limited."""

from __future__ import annotations

import hashlib
import importlib
import zlib

from .merged import HostileLayerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

CHUNK = 1 << 20
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
NO_ZSTD = "it is packed by zstd"


class Stream:
    """The tar in a blob, read forward, hashed, and ended with an error at a limit."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self.hash = hashlib.sha256()
        self._pieces, self._most = decompressed(file), most
        self._piece, self._at, self._before = b"", 0, 0

    def read(self, size: int) -> bytes:
        """Return `size` bytes; fewer at the end."""
        data = self._piece[self._at : self._at + size]
        self._at += len(data)
        while len(data) < size and self._refill():
            more = self._piece[: size - len(data)]
            self._at = len(more)
            data += more
        return data

    def tell(self) -> int:
        """Return how many bytes were read."""
        return self._before + self._at

    def seek(self, target: int) -> None:
        """Skip bytes."""
        left = target - self.tell()
        if left < 0:
            raise HostileLayerError("its tar is malformed (it leads back)")
        while left > len(self._piece) - self._at:
            left -= len(self._piece) - self._at
            if not self._refill():
                return
        self._at += left

    def _refill(self) -> bool:
        self._before += len(self._piece)
        self._piece, self._at = next(self._pieces, b""), 0
        self._most -= len(self._piece)
        if self._most < 0:
            raise HostileLayerError("its tar is larger than all that it may unpack to")
        self.hash.update(self._piece)
        return bool(self._piece)


def decompressed(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the tar in a blob: plain, or packed by gzip or zstd."""
    magic = file.read(4)
    file.seek(0)
    if magic[:2] == GZIP:
        return _gunzip(file)
    source = _open_zstd(file) if magic == ZSTD else file
    return iter(lambda: source.read(CHUNK), b"")


def _gunzip(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a gzip file, which may have several members and padding."""
    packed = file.read(CHUNK)
    while packed:
        decoder = zlib.decompressobj(31)
        while not decoder.eof:
            data = decoder.decompress(packed, CHUNK)
            if not packed and not data and not decoder.eof:
                raise EOFError("it ends early")
            if data:
                yield data
            packed = decoder.unconsumed_tail or (b"" if decoder.eof else file.read(CHUNK))
        packed = decoder.unused_data.lstrip(b"\0") or file.read(CHUNK).lstrip(b"\0")


def _open_zstd(file: IO[bytes]) -> Any:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name).ZstdFile(file)
        except ImportError:
            continue
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise HostileLayerError(NO_ZSTD) from None
    return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
