"""Reads zip files, and refuses those whose directory and entries contradict each other."""

from __future__ import annotations

import stat
import zipfile
from typing import TYPE_CHECKING, cast

from atoll.agent.archive.reader import Reader
from atoll.errors import ArchiveError

if TYPE_CHECKING:
    import io

    from atoll.agent.archive.source import Source

_LOCAL_HEADER = 30
_ENCRYPTED = 0x1
_UNIX = 3
_METHODS = {
    zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA,
}  # fmt: skip


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
                self.catalog.add(info.filename, info, info.file_size, refused=_refused(info))
        _check_overlap(infos, self._zip.start_dir)
        self.limits.check_ratio(self.catalog.total, source.size, "the archive")

    def data(self, name: str) -> bytes:
        """Return a member; the ratio is checked first, the size while it is unpacked."""
        info = self.catalog.keys[name]
        self.limits.check_ratio(info.file_size, info.compress_size, repr(name))
        with self._zip.open(info) as stream:
            return self.drain(name, cast("io.RawIOBase", stream), info.file_size + 1)


def _refused(info: zipfile.ZipInfo) -> str:
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
    for info in sorted(infos, key=lambda one: one.header_offset, reverse=True):
        least = _LOCAL_HEADER + len(info.orig_filename)
        if info.header_offset + least + info.compress_size > end:
            raise ArchiveError(
                f"the zip is refused: {info.filename[:200]!r} overlaps another entry"
            )
        end = info.header_offset
