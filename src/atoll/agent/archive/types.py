"""Limits, members and kinds of archives: what the host and the reading process share."""

from __future__ import annotations

import codecs
import tarfile
import time
from dataclasses import dataclass, fields

from atoll.errors import ArchiveError, ArchiveLimitError
from atoll.files.types import Listing
from atoll.policy import MIB, check_positive

FREE_BYTES = MIB
"""Unpacked bytes up to which the ratio is not checked: it says nothing about a small file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """The limits of one archive; an error names the limit that was exceeded."""

    max_archive_bytes: int = 256 * MIB
    """Bytes of the archive file."""
    max_member_bytes: int = 64 * MIB
    """Bytes of one unpacked member."""
    max_total_bytes: int = 512 * MIB
    """Bytes of all unpacked members."""
    max_ratio: float = 200
    """Unpacked bytes per packed byte, of a member and of the whole archive, from 1 MiB on."""
    max_members: int = 10_000
    """Entries of any kind, or pages."""
    max_name_bytes: int = 1024
    max_header_bytes: int = 4 * MIB
    """Bytes of a zip's directory, or of one header of a tar."""
    max_depth: int = 3
    """Depth of archives within archives, the outermost included."""
    max_seconds: float = 30
    """One operation."""
    max_memory_bytes: int = 1024 * MIB
    """Address space of the reading process."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check_positive(field.name, getattr(self, field.name))

    def check(self, limit: str, value: float, what: str) -> None:
        """Raise ArchiveLimitError if a value exceeds the limit of this name."""
        most = getattr(self, limit)
        if value > most:
            raise ArchiveLimitError(limit, value=value, most=most, what=what)

    def check_ratio(self, unpacked: int, packed: int, what: str) -> None:
        """Raise ArchiveLimitError if the ratio of unpacked to packed bytes is too high."""
        if unpacked > FREE_BYTES:
            self.check("max_ratio", round(unpacked / max(packed, 1), 1), f"the ratio of {what}")


class Clock:
    """The deadline of one operation, checked after every piece of work."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self._limits = limits
        self.start()

    def start(self) -> None:
        """Start the time of an operation."""
        self._start = time.monotonic()

    @property
    def late(self) -> bool:
        """Whether the operation has taken too long."""
        return time.monotonic() - self._start > self._limits.max_seconds

    def check(self) -> None:
        """Raise ArchiveLimitError if the operation has taken too long."""
        if self.late:
            most = self._limits.max_seconds
            raise ArchiveLimitError("max_seconds", most=most, what="the time in seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file or page that can be read."""

    name: str
    """Relative, with `/` and without `..`; a page of a PDF is `page 1`."""
    size: int | None
    """Bytes as the archive declares them; None if only reading shows them."""
    kind: str
    """`file` or `page`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An entry that cannot be read, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A line of a member that matches the query."""

    member: str
    line: int
    text: str


class Hits(Listing[Hit]):
    """Lines in the archive's order, whether there are more, and members that are unreadable."""

    def __init__(self, hits: list[Hit], *, truncated: bool, unread: tuple[Skipped, ...]) -> None:
        super().__init__(hits, truncated=truncated)
        self.unread = unread


HEAD_BYTES = 1024
_MAGIC = (
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"%PDF-", "pdf"),
    (b"\x1f\x8b", "gz"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
)
PACKED = ("gz", "bz2", "xz", "zst")


def kind_of(head: bytes, name: str) -> str:
    """Return zip, 7z, pdf, tar, or the compression: gz, bz2, xz, zst."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if is_tar(head):
        return "tar"
    if b"%PDF-" in head:
        return "pdf"
    text = f"{name!r} is not a supported archive: use zip, tar (gz, bz2, xz, zst), 7z or pdf"
    raise ArchiveError(text)


def is_tar(head: bytes) -> bool:
    """Return whether these bytes begin a tar: its first header has the right checksum."""
    try:
        tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return head[:512] == bytes(512) and len(head) >= 1024
    return True


_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def decode(data: bytes) -> tuple[str, str]:
    """Return the text and the name of its encoding."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding, "replace"), encoding
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"
