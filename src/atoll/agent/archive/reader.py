"""The base class of the readers of each kind of archive, and the table of kinds."""

from __future__ import annotations

import codecs
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from atoll.agent.archive.catalog import Catalog
from atoll.agent.archive.inflate import Inflated, load_unpacker
from atoll.agent.archive.kinds import HEAD_BYTES, PACKED, is_tar, kind_of
from atoll.errors import ArchiveError

if TYPE_CHECKING:
    import io

    from atoll.agent.archive.limits import ArchiveLimits, Clock
    from atoll.agent.archive.source import Source

_READERS = {
    "zip": "zips:ZipReader",
    "tar": "tars:TarReader",
    "7z": "sevens:SevenReader",
    "pdf": "pdfs:PdfReader",
}
PIECE = 1 << 20
_LONGEST_TEXT = 500
_CODECS = ("utf-8-sig", "utf-16", "utf-16-le", "latin-1", "cp437")
"""Of names and texts, as zip, 7z, PDFium and `decoding` have them."""


class Reader:
    """One open archive; a subclass for each kind lists the members and returns their bytes."""

    member_kind: ClassVar[str] = "file"

    def __init__(self, file: io.RawIOBase, kind: str, limits: ArchiveLimits, clock: Clock) -> None:
        self.file, self.kind, self.limits, self.clock = file, kind, limits, clock
        self.catalog = Catalog(limits, clock)
        self.fill()

    @classmethod
    def load(cls) -> None:
        """Import the library for this kind; ArchiveError if it is missing."""

    def fill(self) -> None:
        """Fill the catalog."""
        raise NotImplementedError

    def read(self, name: str) -> bytes:
        """Return all bytes of a member."""
        if name not in self.catalog.keys:
            raise ArchiveError(self._missing(name))
        self.check_size(name, self.catalog.sizes[name] or 0)
        try:
            return self.data(name)
        except (ArchiveError, MemoryError, RecursionError):
            raise
        except Exception as exc:  # a library may raise anything on hostile bytes
            text = f"{name!r} is damaged: {type(exc).__name__}: {exc}"
            raise ArchiveError(text[:_LONGEST_TEXT]) from exc

    def data(self, name: str) -> bytes:
        """Return the bytes of a member that exists and has no declared size over the limit."""
        raise NotImplementedError

    def check_size(self, name: str, size: int) -> None:
        """Raise ArchiveLimitError if a member is too large."""
        self.limits.check("max_member_bytes", size, f"{name!r} in bytes")

    def drain(self, name: str, stream: io.RawIOBase, size: int) -> bytes:
        """Return up to `size` bytes of a stream, within the limits of size and time."""
        pieces, got = [], 0
        while got < size and (piece := stream.read(min(PIECE, size - got))):
            pieces.append(piece)
            got += len(piece)
            self.check_size(name, got)
            self.clock.check()
        return b"".join(pieces)

    def _missing(self, name: str) -> str:
        for skipped, reason in self.catalog.skipped:
            if skipped == name:
                return f"{name!r} cannot be read: {reason}"
        return f"the archive has no member {name[:200]!r}: list `members`"


def open_reader(source: Source, name: str, limits: ArchiveLimits, clock: Clock) -> Reader:
    """Return the reader for an archive's kind, which its first bytes show."""
    kind = kind_of(source.read(HEAD_BYTES), name)
    source.seek(0)
    file: io.RawIOBase = source
    if kind in PACKED:
        file, kind = _unpacked(source, kind, limits, clock)
    if kind in PACKED:
        from atoll.agent.archive.packed import PackedReader  # noqa: PLC0415 - as those of the table

        return PackedReader(file, kind, limits, clock, name)
    return _reader(kind.partition(".")[0])(file, kind, limits, clock)


def load_reader(kind: str) -> None:
    """Import all that this kind may need: a confined process cannot import anything."""
    for codec in _CODECS:
        codecs.lookup(codec)
    if kind in PACKED:
        import_module("atoll.agent.archive.packed")
        load_unpacker(kind)
    _reader("tar" if kind in PACKED else kind).load()


def _reader(kind: str) -> type[Reader]:
    home, _, name = _READERS[kind].partition(":")
    reader: type[Reader] = getattr(import_module(f"atoll.agent.archive.{home}"), name)
    return reader


def _unpacked(
    source: Source, kind: str, limits: ArchiveLimits, clock: Clock
) -> tuple[Inflated, str]:
    file = Inflated(source, kind, limits, clock)
    head = b""
    while len(head) < HEAD_BYTES and (piece := file.read(HEAD_BYTES - len(head))):
        head += piece
    file.seek(0)
    return file, f"tar.{kind}" if is_tar(head) else kind
