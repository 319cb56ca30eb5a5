"""Read archives: a base class, and a reader for each kind: zip, tar, 7z, PDF, one packed file."""

from __future__ import annotations

import codecs
import io
import posixpath
import re
import stat
import tarfile
import zipfile
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, cast

from atoll.agent.archive.inflate import PIECE, Inflated, load_unpacker
from atoll.agent.archive.types import HEAD_BYTES, PACKED, is_tar, kind_of
from atoll.errors import ArchiveError
from atoll.extras import hint

if TYPE_CHECKING:
    from atoll.agent.archive.source import Source
    from atoll.agent.archive.types import ArchiveLimits, Clock


_DRIVE = re.compile(r"[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SHOWN = 200


class Catalog:
    """Members, each with the reader's own key, and skipped entries."""

    def __init__(self, limits: ArchiveLimits, clock: Clock) -> None:
        self._limits, self._clock = limits, clock
        self.keys: dict[str, Any] = {}
        self.sizes: dict[str, int | None] = {}
        self.skipped: list[tuple[str, str]] = []
        self.total = 0

    def add(self, raw_name: str, key: object, size: int | None, *, refused: str = "") -> None:
        """Add an entry; `refused` says why it cannot be read."""
        self._clock.check()
        self.count(len(self.keys) + len(self.skipped) + 1)
        length = len(raw_name.encode("utf-8", "surrogateescape"))
        self._limits.check("max_name_bytes", length, f"the name {raw_name[:40]!r}... in bytes")
        name = _plain(raw_name)
        reason = refused or _unsafe(name) or ("duplicate name" if name in self.keys else "")
        if reason:
            self.skipped.append((_CONTROL.sub("?", name)[:_SHOWN], reason))
            return
        self.keys[name], self.sizes[name] = key, size
        self.total += size or 0
        self._limits.check("max_total_bytes", self.total, "what comes out in bytes")

    def count(self, entries: int) -> None:
        """Raise ArchiveLimitError if there are too many entries."""
        self._limits.check("max_members", entries, "the number of entries")


def _plain(name: str) -> str:
    """Return the name with slashes, without `./`, and with characters that UTF-8 can encode."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\\", "/")
    while text.startswith("./"):
        text = text[2:].lstrip("/")
    return text


def _unsafe(name: str) -> str:
    if not name or _CONTROL.search(name):
        return "unsafe name: empty, or with control characters"
    if name.startswith("/") or _DRIVE.match(name):
        return "unsafe name: absolute"
    if ".." in name.split("/"):
        return "unsafe name: leads out by .."
    return ""


_DRAINED = 1 << 20
"""Bytes of a member that are unpacked between two checks of the limits."""
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
        while got < size and (piece := stream.read(min(_DRAINED, size - got))):
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


class PackedReader(Reader):
    """An archive of one member, which has the file's name without its suffix."""

    def __init__(
        self, file: io.RawIOBase, kind: str, limits: ArchiveLimits, clock: Clock, name: str
    ) -> None:
        self._name = posixpath.basename(name).removesuffix(f".{kind}") or "data"
        super().__init__(file, kind, limits, clock)

    def fill(self) -> None:
        """Add the one member; its size is unknown."""
        self.catalog.add(self._name, None, None)

    def data(self, name: str) -> bytes:
        """Return the whole file."""
        self.file.seek(0)
        return self.drain(name, self.file, self.limits.max_member_bytes + 1)


_LOCAL_HEADER = 30
_ENCRYPTED = 0x1
_UNIX = 3
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA}


class ZipReader(Reader):
    """Reads with `zipfile`, which stops at the declared size and verifies the checksum."""

    def fill(self) -> None:
        """Add all entries but folders; ArchiveError if two entries overlap."""
        source = cast("Source", self.file)
        source.in_headers = True
        self._zip = zipfile.ZipFile(source)
        source.in_headers = False
        infos = self._zip.infolist()
        self.catalog.count(len(infos))
        for info in infos:
            if not info.is_dir():
                self.catalog.add(info.filename, info, info.file_size, refused=_zip_refusal(info))
        _check_overlap(infos, self._zip.start_dir)
        self.limits.check_ratio(self.catalog.total, source.size, "the archive")

    def data(self, name: str) -> bytes:
        """Return a member; the ratio is checked first, the size while it is unpacked."""
        info = self.catalog.keys[name]
        self.limits.check_ratio(info.file_size, info.compress_size, repr(name))
        with self._zip.open(info) as stream:
            return self.drain(name, cast("io.RawIOBase", stream), info.file_size + 1)


def _zip_refusal(info: zipfile.ZipInfo) -> str:
    mode = info.external_attr >> 16 if info.create_system == _UNIX else 0
    if stat.S_ISLNK(mode):
        return "link"
    if stat.S_IFMT(mode) not in {0, stat.S_IFREG}:
        return "device"
    if info.flag_bits & _ENCRYPTED:
        return "encrypted"
    if info.compress_type not in _METHODS:
        return f"packed by method {info.compress_type}, which is not known"
    return ""


def _check_overlap(infos: list[zipfile.ZipInfo], end: int) -> None:
    """Raise ArchiveError if entries share packed bytes: a small file could have any number."""
    for info in sorted(infos, key=lambda entry: entry.header_offset, reverse=True):
        least = _LOCAL_HEADER + len(info.orig_filename)
        if info.header_offset + least + info.compress_size > end:
            raise ArchiveError(
                f"the zip is refused: {info.filename[:200]!r} overlaps another entry"
            )
        end = info.header_offset


_BLOCK = 512


class TarReader(Reader):
    """Reads headers with `tarfile`, and the members' data itself."""

    def fill(self) -> None:
        """Add all entries but folders; links and devices are skipped."""
        headers = Headers(self.file, self.limits, self.clock)
        with tarfile.TarFile(fileobj=cast("io.BytesIO", headers), mode="r") as tar:
            entries = 0
            while (info := tar.next()) is not None:
                # each member would keep a copy of the global headers
                tar.members.clear()  # type: ignore[attr-defined]
                entries += 1
                self.catalog.count(entries)
                if info.size < 0:
                    raise ArchiveError(
                        f"the tar is damaged: {info.name[:200]!r} has a negative size"
                    )
                if not info.isdir():
                    key = (info.offset_data, info.size)
                    self.catalog.add(info.name, key, info.size, refused=_tar_refusal(info))
            _check_end(headers, tar.offset)
        headers.detach()  # otherwise tarfile would close the file

    def data(self, name: str) -> bytes:
        """Return a member, read at its offset."""
        place, size = self.catalog.keys[name]
        self.file.seek(place)
        data = self.drain(name, self.file, size)
        if len(data) < size:
            raise ArchiveError(f"the archive is cut off: {name!r} has {len(data)} of {size} bytes")
        return data


class Headers(io.BufferedReader):
    """The file object for `tarfile`: it reads headers only, so reads are small and timed."""

    def __init__(self, file: io.RawIOBase, limits: ArchiveLimits, clock: Clock) -> None:
        super().__init__(file, PIECE)
        self._limits, self._clock = limits, clock

    def read(self, size: int | None = -1, /) -> bytes:
        """Return `size` bytes of a header."""
        self._clock.check()
        wanted = self._limits.max_header_bytes + 1 if size is None or size < 0 else size
        self._limits.check("max_header_bytes", wanted, "a header in bytes")
        return super().read(size)


def _tar_refusal(info: tarfile.TarInfo) -> str:
    if info.issym() or info.islnk():
        return "link"
    if info.issparse():
        return "sparse file"
    return "" if info.isreg() else "device"


def _check_end(headers: Headers, place: int) -> None:
    """Raise ArchiveError if the list ends at an invalid header: `tarfile` takes it for the end."""
    headers.seek(place)
    if any(headers.read(_BLOCK)):
        raise ArchiveError(f"the tar is damaged at byte {place}, or cut off there")


class SevenReader(Reader):
    """Unpacks all members at once if they fit into memory: 7z often packs them together."""

    @classmethod
    def load(cls) -> None:
        """Import py7zr, and what py7zr imports while it unpacks."""
        _py7zr()
        with suppress(ImportError):
            import psutil  # type: ignore[import-untyped] # noqa: F401, PLC0415 - a part of the extra

    def fill(self) -> None:
        """Add all entries but folders."""
        seven = _py7zr()
        source = cast("Source", self.file)
        self._kept: dict[str, bytes] = {}
        self._seven = seven.SevenZipFile(_Buffered(source), "r")
        if self._seven.needs_password():
            raise ArchiveError("the 7z is encrypted")
        for info in self._seven.list():
            if not info.is_directory:
                refused = "" if info.is_file else "link or device"
                self.catalog.add(info.filename, info.filename, info.uncompressed, refused=refused)
        self.limits.check_ratio(self.catalog.total, source.size, "the archive")

    def data(self, name: str) -> bytes:
        """Return a member, from the cache if it was unpacked before."""
        if name not in self._kept:
            together = self.catalog.total <= self.limits.max_member_bytes
            self._kept = self._unpack(list(self.catalog.keys) if together else [name])
        if name not in self._kept:
            raise ArchiveError(f"the 7z is damaged: {name!r} could not be unpacked")
        return self._kept[name]

    def _unpack(self, names: list[str]) -> dict[str, bytes]:
        raw = {self.catalog.keys[name]: name for name in names}
        factory = _factory(
            self, {PurePosixPath(path).as_posix(): name for path, name in raw.items()}
        )
        self._seven.reset()
        self._seven.extract(targets=list(raw), factory=factory)
        return {name: made.data.getvalue() for name, made in factory.made.items()}


def _py7zr() -> Any:
    try:
        import py7zr  # noqa: PLC0415 - an extra
    except ImportError:
        raise ArchiveError(f"7z files need py7zr. {hint('archive')}") from None
    return py7zr


def _factory(reader: SevenReader, names: dict[str, str]) -> Any:
    from py7zr.io import Py7zIO, WriterFactory  # noqa: PLC0415 - an extra

    class Kept(Py7zIO):
        """A member while it is unpacked."""

        def __init__(self, name: str) -> None:
            self._name, self.data = name, io.BytesIO()

        def write(self, data: bytes | bytearray) -> int:
            reader.clock.check()
            reader.check_size(self._name, self.data.tell() + len(data))
            return self.data.write(data)

        def read(self, size: int | None = None) -> bytes:
            return self.data.read(size)

        def seek(self, offset: int, whence: int = 0) -> int:
            return self.data.seek(offset, whence)

        def flush(self) -> None:
            pass

        def size(self) -> int:
            return len(self.data.getbuffer())

    class Factory(WriterFactory):
        """Maps members to their names; py7zr passes a normalised path."""

        def __init__(self) -> None:
            self.made: dict[str, Kept] = {}

        def create(self, filename: str) -> Kept:
            name = names.get(filename, filename)
            self.made[name] = Kept(name)
            return self.made[name]

    return Factory()


class _Buffered(io.BufferedReader):
    name = "archive"


class PdfReader(Reader):
    """SECURITY: a hostile file may take over the C++ library, so the process is confined."""

    member_kind = "page"

    @classmethod
    def load(cls) -> None:
        """Import pypdfium2, which loads PDFium."""
        _pypdfium()

    def fill(self) -> None:
        """Add the members `page 1`, `page 2`, ..."""
        pdfium = _pypdfium()
        self._fault = pdfium.PdfiumError
        try:
            self._document = pdfium.PdfDocument(self.file.read())
        except pdfium.PdfiumError as exc:
            raise ArchiveError(f"the pdf cannot be read: {_reason(exc)}") from None
        self.catalog.count(len(self._document))
        for number in range(len(self._document)):
            self.catalog.add(f"page {number + 1}", number, None)

    def data(self, name: str) -> bytes:
        """Return the text of a page, in UTF-8."""
        try:
            page = self._document[self.catalog.keys[name]]
            text = page.get_textpage()
        except self._fault as exc:
            raise ArchiveError(f"{name} of the pdf cannot be read: {exc}") from None
        self.check_size(name, text.count_chars())
        data: bytes = text.get_text_range().replace("\r\n", "\n").encode("utf-8", "replace")
        text.close()
        page.close()
        return data


def _pypdfium() -> Any:
    try:
        import pypdfium2  # noqa: PLC0415 - an extra
    except ImportError:
        raise ArchiveError(f"pdf files need pypdfium2. {hint('archive')}") from None
    return pypdfium2


def _reason(exc: Exception) -> str:
    return "it is encrypted" if "assword" in str(exc) else str(exc)


_READERS: dict[str, type[Reader]] = {
    "zip": ZipReader,
    "tar": TarReader,
    "7z": SevenReader,
    "pdf": PdfReader,
}


def open_reader(source: Source, name: str, limits: ArchiveLimits, clock: Clock) -> Reader:
    """Return the reader for an archive's kind, which its first bytes show."""
    kind = kind_of(source.read(HEAD_BYTES), name)
    source.seek(0)
    file: io.RawIOBase = source
    if kind in PACKED:
        file, kind = _unpacked(source, kind, limits, clock)
    if kind in PACKED:
        return PackedReader(file, kind, limits, clock, name)
    return _READERS[kind.partition(".")[0]](file, kind, limits, clock)


def load_reader(kind: str) -> None:
    """Import all that this kind may need: a confined process cannot import anything."""
    for codec in _CODECS:
        codecs.lookup(codec)
    if kind in PACKED:
        load_unpacker(kind)
    _READERS["tar" if kind in PACKED else kind].load()


def _unpacked(
    source: Source, kind: str, limits: ArchiveLimits, clock: Clock
) -> tuple[Inflated, str]:
    file = Inflated(source, kind, limits, clock)
    head = b""
    while len(head) < HEAD_BYTES and (piece := file.read(HEAD_BYTES - len(head))):
        head += piece
    file.seek(0)
    return file, f"tar.{kind}" if is_tar(head) else kind
