"""Reads a single compressed file that is not a tar, such as a rotated log."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from atoll.agent.archive.reader import Reader

if TYPE_CHECKING:
    import io

    from atoll.agent.archive.limits import ArchiveLimits, Clock


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
