"""Keeps a NextPLAID server's copy of an index up to date, and searches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.agent.retrieval.types import CODE, DOC

if TYPE_CHECKING:
    from atoll.agent.retrieval.nextplaid import NextPlaid
    from atoll.agent.retrieval.store import Record, Store
    from atoll.agent.retrieval.types import Unit

    Ranked = list[tuple[Unit, float]]

_FILES_AT_ONCE = 20


class PlaidEngine:
    """A server with two indices of this folder, one for code and one for documents."""

    def __init__(self, server: NextPlaid, default_name: str) -> None:
        self._server = server
        name = server.index or default_name
        self._indices = {corpus: f"{name}-{corpus}" for corpus in (CODE, DOC)}
        self._key = f"{server.url} {name}"

    def sync(self, store: Store) -> None:
        """Send files that the server lacks, and remove those that were deleted."""
        new = [self._server.create(name) for name in self._indices.values()]
        if any(new):
            store.mark_sent(self._key, [], store.sent(self._key))  # the server lost its index
        records, sent = store.records(), store.sent(self._key)
        gone = sorted(sent.keys() - records.keys())
        changed = [one for one in records.values() if sent.get(one.path) != one.hash]
        if gone:
            self._remove(gone)
            store.mark_sent(self._key, [], gone)
        for start in range(0, len(changed), _FILES_AT_ONCE):
            self._send(store, changed[start : start + _FILES_AT_ONCE])

    def search(self, store: Store, query: str, corpus: str, k: int) -> Ranked:
        """Return units that the server finds, if they have not changed since they were sent."""
        found = []
        for (path, name, start, end), score in self._server.search(self._indices[corpus], query, k):
            for _, unit in store.units_of(path):
                if (unit.name, unit.start, unit.end) == (name, start, end):
                    found.append((unit, score))
                    break
        return found

    def _send(self, store: Store, records: list[Record]) -> None:
        self._remove([one.path for one in records])  # an old copy of ours, or another program's
        units = [pair for one in records for pair in store.units_of(one.path)]
        for corpus, index in self._indices.items():
            chosen = [unit for kind, unit in units if kind == corpus]
            if chosen:
                self._server.add(index, chosen)
        store.mark_sent(self._key, records, [])

    def _remove(self, paths: list[str]) -> None:
        for index in self._indices.values():
            self._server.remove(index, paths)
