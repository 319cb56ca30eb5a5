"""Reads tar files, compressed or not: one pass for the list, then members by offset."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, cast

from atoll.agent.archive.inflate import PIECE
from atoll.agent.archive.reader import Reader
from atoll.errors import ArchiveError

if TYPE_CHECKING:
    from atoll.agent.archive.limits import ArchiveLimits, Clock

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
                    self.catalog.add(info.name, key, info.size, refused=_refused(info))
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


def _refused(info: tarfile.TarInfo) -> str:
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
