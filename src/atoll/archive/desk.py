"""The program that reads one archive: run by `process`, in limits, and spoken to by `archive`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.archive.confined import serve
from atoll.archive.limits import ArchiveLimits, Clock
from atoll.archive.reader import open_reader
from atoll.archive.source import Source

if TYPE_CHECKING:
    from atoll.archive.reader import Reader

Answer = tuple[dict[str, Any], bytes]


class Desk:
    """One archive, once it is open."""

    def __init__(self) -> None:
        self._reader: Reader

    def open(self, fd: int, name: str, limits: dict[str, Any]) -> Answer:
        """Its kind, members and what was skipped."""
        held = ArchiveLimits(**limits)
        source = Source(fd, held)
        self._clock = Clock(held)
        self._reader = reader = open_reader(source, name, held, self._clock)
        catalog = reader.catalog
        members = [[name, size, reader.member_kind] for name, size in catalog.sizes.items()]
        return {"kind": reader.kind, "members": members, "skipped": catalog.skipped}, b""

    def read(self, name: str) -> Answer:
        """A member's bytes."""
        self._clock.start()
        return {}, self._reader.read(name)

    def search(self, query: str, most: int, *, regex: bool, ignore_case: bool) -> Answer:
        """Lines with the query in them."""
        from atoll.archive.searching import search  # noqa: PLC0415 - many archives are only read

        self._clock.start()
        return search(self._reader, query, most, regex=regex, ignore_case=ignore_case), b""


def main() -> None:
    """Serve until there is nobody to serve."""
    desk = Desk()
    serve({"open": desk.open, "read": desk.read, "search": desk.search})
