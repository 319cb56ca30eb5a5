"""Reads 7z files with py7zr; the process limits cover what py7zr does not limit."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from atoll.agent.archive.reader import Reader
from atoll.errors import ArchiveError
from atoll.extras import hint

if TYPE_CHECKING:
    from atoll.agent.archive.source import Source


class SevenReader(Reader):
    """Unpacks all members at once if they fit into memory: 7z often packs them together."""

    @classmethod
    def load(cls) -> None:
        """Import py7zr, and what py7zr imports while it unpacks."""
        _library()
        with suppress(ImportError):
            import psutil  # type: ignore[import-untyped] # noqa: F401, PLC0415 - a part of the extra

    def fill(self) -> None:
        """Add all entries but folders."""
        seven = _library()
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
        factory = _factory(self, {PurePosixPath(one).as_posix(): name for one, name in raw.items()})
        self._seven.reset()
        self._seven.extract(targets=list(raw), factory=factory)
        return {name: made.data.getvalue() for name, made in factory.made.items()}


def _library() -> Any:
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
