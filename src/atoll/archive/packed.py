"""A single file that is packed and no tar, such as a log that was rotated."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from atoll.archive.reader import Reader

if TYPE_CHECKING:
    import io

    from atoll.archive.limits import ArchiveLimits, Clock


class PackedReader(Reader):
    """One member, named as the file without its ending."""

    def __init__(
        self, file: io.RawIOBase, kind: str, limits: ArchiveLimits, clock: Clock, name: str
    ) -> None:
        self._name = posixpath.basename(name).removesuffix(f".{kind}") or "data"
        super().__init__(file, kind, limits, clock)

    def fill(self) -> None:
        """One member, of a size that is not known."""
        self.catalog.add(self._name, None, None)

    def data(self, name: str) -> bytes:
        """All of it."""
        self.file.seek(0)
        return self.drain(name, self.file, self.limits.max_member_bytes + 1)
