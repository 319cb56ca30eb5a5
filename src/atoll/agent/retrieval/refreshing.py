"""Brings an index up to date: reads only files whose stamp changed, parses those whose hash did."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.agent.retrieval.languages import GRAMMARS, corpus_of, has_grammars, suffix_of
from atoll.agent.retrieval.parsing import Parser
from atoll.agent.retrieval.store import Record
from atoll.agent.retrieval.types import Refreshed
from atoll.extras import hint

if TYPE_CHECKING:
    from atoll.agent.retrieval.sources import Entry, Source
    from atoll.agent.retrieval.store import Store
    from atoll.agent.retrieval.types import Bounds, Progress, Unit

_BATCH_UNITS = 1_000
_HEAD = 8_192
_BINARY = b""
"""The hash of a file that is not text: it has no units, and is not read again."""


def refresh(
    store: Store, source: Source, bounds: Bounds, progress: Progress | None = None
) -> Refreshed:
    """Index the files that changed; an interrupted refresh keeps what it has written."""
    job = _Job(store, source, bounds)
    wanted = job.survey()
    with Parser(bounds) as parser:
        for done, entry in enumerate(wanted):
            if progress:
                progress(done, len(wanted))
            if not job.take(entry, parser):
                break
        job.flush()
        job.broken = parser.failures
    if progress:
        progress(len(wanted), len(wanted))
    return job.outcome()


@dataclass(slots=True)
class _Job:
    store: Store
    source: Source
    bounds: Bounds
    records: dict[str, Record] = field(default_factory=dict)
    pending: list[tuple[Record, str, list[Unit]]] = field(default_factory=list)
    touched: list[Record] = field(default_factory=list)
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    skipped: int = 0
    units: int = 0
    broken: int = 0
    too_many: int = 0

    def survey(self) -> list[Entry]:
        """Remove deleted files from the index; return those that may have changed."""
        self.records, found = self.store.records(), set()
        wanted = []
        with contextlib.closing(self.source.entries()) as entries:
            for number, entry in enumerate(entries):
                if number >= self.bounds.files:
                    self.too_many += 1  # a lower bound: the source may be endless
                    break
                if entry.size > self.bounds.file_bytes:
                    self.skipped += 1
                    continue
                found.add(entry.path)
                wanted += [] if self._is_known(entry) else [entry]
        gone = self.records.keys() - found
        if gone:
            self.store.remove(sorted(gone))
        self.removed, self.units = len(gone), self.store.count()
        return wanted

    def _is_known(self, entry: Entry) -> bool:
        record = self.records.get(entry.path)
        if record is None or not entry.stamp or record.stamp != _stamp(entry):
            return False
        self.unchanged += 1
        self.skipped += record.hash == _BINARY
        return True

    def take(self, entry: Entry, parser: Parser) -> bool:
        """Index one file; return False if the index is full."""
        data = self.source.read(entry.path, self.bounds.file_bytes)
        if data is None:
            self.skipped += 1
            return True
        is_text = b"\0" not in data[:_HEAD]
        digest = hashlib.sha256(data).digest() if is_text else _BINARY
        record = Record(path=entry.path, stamp=_stamp(entry), hash=digest)
        self.skipped += not is_text
        known = self.records.get(entry.path)
        if known and known.hash == digest and _parser_of(known.stamp) == _parser_of(record.stamp):
            self.unchanged += 1
            self.touched.append(record)
            return True
        units = parser.units(entry.path, data.decode("utf-8", "replace")) if is_text else []
        if self.units + len(units) > self.bounds.units:
            self.too_many += 1
            return False
        self._put(record, units)
        return True

    def _put(self, record: Record, units: list[Unit]) -> None:
        self.changed += 1
        self.units += len(units)
        self.pending.append((record, corpus_of(record.path), units))
        if sum(len(one) for _, _, one in self.pending) >= _BATCH_UNITS:
            self.flush()

    def flush(self) -> None:
        """Write the pending changes to the index."""
        if self.pending:
            self.store.put(self.pending)
            self.pending = []
        if self.touched:
            self.store.restamp(self.touched)
            self.touched = []
        self.units = self.store.count()

    def outcome(self) -> Refreshed:
        """Return the counts of this refresh."""
        return Refreshed(
            changed=self.changed,
            removed=self.removed,
            unchanged=self.unchanged,
            units=self.units,
            skipped=self.skipped + self.too_many,
            note=self._note(),
        )

    def _note(self) -> str:
        notes = []
        if self.too_many:
            limits = f"{self.bounds.files:,} files and {self.bounds.units:,} units"
            notes.append(f"not all is indexed: at most {limits} (Bounds)")
        if self.broken:
            notes.append(f"{self.broken} files broke the parser and were cut into lines")
        if not has_grammars() and any(suffix_of(path) in GRAMMARS for path in self.records):
            notes.append(f"functions of other languages need grammars. {hint('retrieval')}")
        return "; ".join(notes)


def _stamp(entry: Entry) -> str:
    """Return the stamp with the parser's name: new grammars make a file be parsed again."""
    parser = "grammars" if suffix_of(entry.path) in GRAMMARS and has_grammars() else "plain"
    return f"{parser} {entry.stamp}"


def _parser_of(stamp: str) -> str:
    return stamp.partition(" ")[0]
