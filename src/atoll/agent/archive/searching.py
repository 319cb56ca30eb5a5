"""Searches the members of an archive line by line, in time linear in their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.agent.archive.decoding import decode
from atoll.errors import ArchiveError
from atoll.guest.shared.search import MAX_LINE, PROBE_BYTES, shown
from atoll.search.patterns import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.agent.archive.reader import Reader


def search(
    reader: Reader, query: str, most: int, *, regex: bool, ignore_case: bool
) -> dict[str, Any]:
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
