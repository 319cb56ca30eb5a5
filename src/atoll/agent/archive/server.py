"""The program that reads one archive: `process` starts it with limits, `archive` sends requests."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from atoll.agent.archive.confined import serve
from atoll.agent.archive.readers import load_reader, open_reader
from atoll.agent.archive.source import Source
from atoll.agent.archive.types import HEAD_BYTES, ArchiveLimits, Clock, decode, kind_of
from atoll.errors import ArchiveError
from atoll.guest.shared.search import MAX_LINE, PROBE_BYTES, shown
from atoll.search.patterns import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from atoll.agent.archive.confined import Reply
    from atoll.agent.archive.readers import Reader


def search(
    reader: Reader, query: str, most: int, *, regex: bool, ignore_case: bool
) -> dict[str, object]:
    """Return hits, whether there are more, and members that could not be read."""
    pattern = Pattern(query, regex=regex, ignore_case=ignore_case)
    hits: list[tuple[str, int, str]] = []
    unread: list[tuple[str, str]] = []
    cut = False
    for name in reader.catalog.keys:
        cut = reader.clock.late
        if cut or len(hits) > most:
            break
        try:
            data = _searchable(reader.read(name))
        except ArchiveError as exc:
            unread.append((name, str(exc)))
            continue
        for line, text in _lines(pattern, data):
            hits.append((name, line, text))
            if len(hits) > most:
                break
    return {"hits": hits[:most], "truncated": cut or len(hits) > most, "unread": unread}


def _searchable(data: bytes) -> bytearray:
    """Return a text in UTF-8 with a final line end; b"" for a member that is not text."""
    text, encoding = decode(data)
    if encoding not in {"utf-8", "latin-1"}:
        data = text.encode("utf-8", "replace")
    elif b"\0" in data[:PROBE_BYTES]:
        return bytearray()
    elif encoding == "latin-1":
        data = text.encode()
    return bytearray(data if data.endswith(b"\n") else data + b"\n")


def _lines(pattern: Pattern, data: bytearray) -> Iterator[tuple[int, str]]:
    if not data:
        return
    find, at, line, counted = pattern.within(data, len(data)), 0, 1, 0
    while at < len(data) and (place := find(at)) >= 0:
        begin = data.rfind(b"\n", at, place) + 1 or at
        line, counted = line + data.count(b"\n", counted, begin), begin
        at = data.find(b"\n", place) + 1
        yield line, shown(bytes(data[begin : min(at - 1, begin + 4 * MAX_LINE)]))


class ArchiveServer:
    """Answers requests about one archive."""

    def __init__(self) -> None:
        self._reader: Reader

    def load(self, fd: int, name: str, limits: Mapping[str, Any]) -> None:
        """Import what the archive's kind needs, which its first bytes show."""
        self._limits = ArchiveLimits(**limits)
        self._source, self._name = Source(fd, self._limits), name
        load_reader(kind_of(os.pread(fd, HEAD_BYTES, 0), name))
        with suppress(ImportError):  # a search that needs it says so
            import re2  # noqa: F401, PLC0415 - an extra

    def open(self) -> Reply:
        """Return the kind, the members and the skipped ones."""
        self._clock = Clock(self._limits)
        reader = open_reader(self._source, self._name, self._limits, self._clock)
        self._reader, catalog = reader, reader.catalog
        members = [[name, size, reader.member_kind] for name, size in catalog.sizes.items()]
        return {"kind": reader.kind, "members": members, "skipped": catalog.skipped}, b""

    def read(self, name: str) -> Reply:
        """Return the bytes of a member."""
        self._clock.start()
        return {}, self._reader.read(name)

    def search(self, query: str, most: int, *, regex: bool, ignore_case: bool) -> Reply:
        """Return the lines that match."""
        self._clock.start()
        return search(self._reader, query, most, regex=regex, ignore_case=ignore_case), b""


def main() -> None:
    """Serve requests until the parent closes the connection."""
    server = ArchiveServer()
    serve({"open": server.open, "read": server.read, "search": server.search}, server.load)
