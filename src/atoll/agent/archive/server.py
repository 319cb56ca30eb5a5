"""The program that reads one archive: `process` starts it with limits, `archive` sends requests."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from atoll.agent.archive.confined import serve
from atoll.agent.archive.kinds import HEAD_BYTES, kind_of
from atoll.agent.archive.limits import ArchiveLimits, Clock
from atoll.agent.archive.reader import load_reader, open_reader
from atoll.agent.archive.searching import search
from atoll.agent.archive.source import Source

if TYPE_CHECKING:
    from atoll.agent.archive.reader import Reader

Answer = tuple[dict[str, Any], bytes]


class ArchiveServer:
    """Answers requests about one archive."""

    def __init__(self) -> None:
        self._reader: Reader

    def load(self, fd: int, name: str, limits: dict[str, Any]) -> None:
        """Import what the archive's kind needs, which its first bytes show."""
        self._limits = ArchiveLimits(**limits)
        self._source, self._name = Source(fd, self._limits), name
        load_reader(kind_of(os.pread(fd, HEAD_BYTES, 0), name))
        with suppress(ImportError):  # a search that needs it says so
            import re2  # noqa: F401, PLC0415 - an extra

    def open(self) -> Answer:
        """Return the kind, the members and what was skipped."""
        self._clock = Clock(self._limits)
        reader = open_reader(self._source, self._name, self._limits, self._clock)
        self._reader, catalog = reader, reader.catalog
        members = [[name, size, reader.member_kind] for name, size in catalog.sizes.items()]
        return {"kind": reader.kind, "members": members, "skipped": catalog.skipped}, b""

    def read(self, name: str) -> Answer:
        """Return the bytes of a member."""
        self._clock.start()
        return {}, self._reader.read(name)

    def search(self, query: str, most: int, *, regex: bool, ignore_case: bool) -> Answer:
        """Return the lines that match."""
        self._clock.start()
        return search(self._reader, query, most, regex=regex, ignore_case=ignore_case), b""


def main() -> None:
    """Serve requests until the parent closes the connection."""
    server = ArchiveServer()
    serve({"open": server.open, "read": server.read, "search": server.search}, server.load)
