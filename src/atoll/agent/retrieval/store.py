"""The index: one SQLite file with units, their words (FTS5) and vectors.

Many threads and processes may use it at the same time: a write is one short transaction. The FTS5
tables are contentless, so deleting a unit needs the words that it was inserted with.
"""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from atoll.agent.retrieval.types import CODE, DOC, Unit
from atoll.agent.retrieval.vectors import key_of
from atoll.agent.retrieval.words import match_expression, related_expression, split_words
from atoll.concurrency import forks
from atoll.errors import IndexDamagedError, RetrievalError
from atoll.state import sqlite_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

VERSION = 2
"""Increase it with every change of the tables, the chunks or the words."""
APPLICATION = 0x41544F4C
MEMORY = ":memory:"
_WAIT_SECONDS = 30
_PAGE = 4096
_FIELDS = tuple(Unit.__annotations__)
_values = attrgetter(*_FIELDS)
_COLUMNS = ", ".join(f'u."{name}"' for name in _FIELDS)
_TEXTS = "name, body, doc, content='', tokenize='porter unicode61'"
_SCHEMA = f"""
CREATE TABLE files (path TEXT PRIMARY KEY, stamp TEXT NOT NULL, hash BLOB NOT NULL);
CREATE TABLE units (id INTEGER PRIMARY KEY, corpus TEXT NOT NULL,
    {", ".join(f'"{name}" NOT NULL' for name in _FIELDS)}, meaning BLOB NOT NULL);
CREATE INDEX units_of_file ON units (path);
CREATE TABLE vectors (
    key BLOB NOT NULL, tokens INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (key, tokens));
CREATE TABLE sent (server TEXT, path TEXT, hash BLOB NOT NULL, PRIMARY KEY (server, path));
CREATE VIRTUAL TABLE words_code USING fts5 ({_TEXTS});
CREATE VIRTUAL TABLE words_doc USING fts5 ({_TEXTS});
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
"""
_WORDS = {CODE: "words_code", DOC: "words_doc"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Path, stamp and hash of a file when it was indexed."""

    path: str
    stamp: str
    hash: bytes


class Store:
    """The tables of one index; a failure of the disk is a RetrievalError that says so."""

    def __init__(self, path: Path | None, max_bytes: int) -> None:
        """Open or create the index; without a path it is in memory."""
        self._lock = forks.new_rlock()
        self._changes = 0
        if path is None:
            self._db = sqlite3.connect(MEMORY, isolation_level=None, check_same_thread=False)
        else:
            self._db = sqlite_file.open_file(path, busy_seconds=_WAIT_SECONDS)
        try:
            with _clear_errors():
                self._prepare(max_bytes, on_disk=path is not None)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, max_bytes: int, *, on_disk: bool) -> None:
        self._db.execute(f"PRAGMA max_page_count = {max(64, max_bytes // _PAGE)}")
        if on_disk:
            sqlite_file.write_ahead(self._db)
        marks = [self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in _MARKS]
        empty = not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if empty:
            self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        elif marks != [APPLICATION, VERSION]:
            raise IndexDamagedError("the index has another version")
        for table in (*_WORDS.values(), "files", "units", "vectors", "sent"):
            self._db.execute(f"SELECT rowid FROM {table} LIMIT 1").fetchone()  # noqa: S608

    def check(self) -> None:
        """Raise IndexDamagedError if a page is damaged; reads all pages."""
        with self._reading() as db:
            (said,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if said != "ok":
            raise IndexDamagedError(f"the index is damaged: {said}")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def records(self) -> dict[str, Record]:
        """Return the indexed files, by path."""
        with self._reading() as db:
            rows = db.execute("SELECT path, stamp, hash FROM files").fetchall()
        return {row[0]: Record(path=row[0], stamp=row[1], hash=row[2]) for row in rows}

    def count(self) -> int:
        """Return how many units there are."""
        with self._reading() as db:
            return int(db.execute("SELECT count(*) FROM units").fetchone()[0])

    def put(self, files: Iterable[tuple[Record, str, list[Unit]]]) -> None:
        """Replace the units of files by new ones, by corpus."""
        with self._writing() as db:
            for record, corpus, units in files:
                _forget(db, record.path)
                row = (record.path, record.stamp, record.hash)
                db.execute("INSERT INTO files VALUES (?, ?, ?)", row)
                for unit in units:
                    _insert(db, corpus, unit)

    def restamp(self, records: Iterable[Record]) -> None:
        """Update the stamps of files whose content did not change."""
        with self._writing() as db:
            rows = [(record.stamp, record.path) for record in records]
            db.executemany("UPDATE files SET stamp = ? WHERE path = ?", rows)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove deleted files."""
        with self._writing() as db:
            for path in paths:
                _forget(db, path)

    def search(
        self, query: str, corpus: str, limit: int, *, related: bool = False
    ) -> list[tuple[Unit, float]]:
        """Return units that contain any of the query's words, best first.

        With `related`, units follow, with score 0, that contain words which begin or mean the same.
        """
        result = self._matching(match_expression(query), corpus, limit)
        if not related or len(result) >= limit:
            return result
        known = {(unit.path, unit.start, unit.name) for unit, _ in result}
        more = self._matching(related_expression(query), corpus, limit)
        others = (
            (unit, 0.0) for unit, _ in more if (unit.path, unit.start, unit.name) not in known
        )
        return [*result, *others][:limit]

    def _matching(self, expression: str, corpus: str, limit: int) -> list[tuple[Unit, float]]:
        if not expression:
            return []
        words = _WORDS[corpus]
        ranked = (
            f"SELECT rowid, bm25({words}, 4, 1, 2) AS score FROM {words} "  # noqa: S608
            f"WHERE {words} MATCH ? ORDER BY score LIMIT ?"
        )
        statement = (
            f"SELECT {_COLUMNS}, r.score FROM ({ranked}) AS r "  # noqa: S608
            "JOIN units AS u ON u.id = r.rowid ORDER BY r.score, u.id"
        )
        with self._reading() as db:
            rows = db.execute(statement, (expression, limit)).fetchall()
        return [(_unit(row), -row[-1]) for row in rows]

    @property
    def state(self) -> tuple[int, int]:
        """What differs after a change of the index, by this process or by another."""
        with self._reading() as db:
            return self._changes, int(db.execute("PRAGMA data_version").fetchone()[0])

    def encoded(self, corpus: str, most: int) -> tuple[int, int]:
        """Return how many units of a corpus have a vector, and how many there are, up to `most`."""
        statement = (
            "SELECT count(v.key), count(*) FROM (SELECT meaning FROM units WHERE corpus = ? "
            "ORDER BY id LIMIT ?) AS u LEFT JOIN vectors AS v ON v.key = u.meaning AND v.tokens = 0"
        )
        with self._reading() as db:
            done, total = db.execute(statement, (corpus, most)).fetchone()
        return int(done), int(total)

    def unencoded(self, corpus: str, limit: int) -> list[Unit]:
        """Return units of a corpus that have no vector, the oldest first."""
        statement = (
            f"SELECT {_COLUMNS} FROM units AS u WHERE u.corpus = ? AND NOT EXISTS "  # noqa: S608
            "(SELECT 1 FROM vectors AS v WHERE v.key = u.meaning AND v.tokens = 0) "
            "GROUP BY u.meaning ORDER BY u.id LIMIT ?"
        )
        with self._reading() as db:
            return [_unit(row) for row in db.execute(statement, (corpus, limit)).fetchall()]

    def dense_vectors(self, corpus: str, most: int) -> list[tuple[int, bytes]]:
        """Return the ids of the units of a corpus that have a vector, each with it."""
        statement = (
            "SELECT u.id, v.data FROM units AS u JOIN vectors AS v "
            "ON v.key = u.meaning AND v.tokens = 0 WHERE u.corpus = ? ORDER BY u.id LIMIT ?"
        )
        with self._reading() as db:
            return list(db.execute(statement, (corpus, most)).fetchall())

    def units(self, ids: list[int]) -> list[tuple[int, Unit]]:
        """Return units by their ids, in this order; those that are gone are left out."""
        marks = ", ".join("?" * len(ids))
        statement = f"SELECT {_COLUMNS}, u.id FROM units AS u WHERE u.id IN ({marks})"  # noqa: S608
        with self._reading() as db:
            result = {row[-1]: _unit(row) for row in db.execute(statement, ids).fetchall()}
        return [(number, result[number]) for number in ids if number in result]

    def vectors(self, keys: list[bytes], *, tokens: bool) -> dict[bytes, bytes]:
        """Return the cached vectors of one kind, by key."""
        marks = ", ".join("?" * len(keys))
        statement = f"SELECT key, data FROM vectors WHERE tokens = ? AND key IN ({marks})"  # noqa: S608
        with self._reading() as db:
            return dict(db.execute(statement, (int(tokens), *keys)).fetchall())

    def keep_vectors(self, vectors: dict[bytes, bytes], *, tokens: bool, most: int) -> None:
        """Cache vectors; over `most` of a kind, the oldest are deleted."""
        with self._writing() as db:
            rows = [(key, int(tokens), data) for key, data in vectors.items()]
            db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)
            db.execute(
                "DELETE FROM vectors WHERE rowid IN (SELECT rowid FROM vectors "
                "WHERE tokens = ? ORDER BY rowid DESC LIMIT -1 OFFSET ?)",
                (int(tokens), most),
            )

    def units_of(self, path: str) -> list[tuple[str, Unit]]:
        """Return the units of a file, each with its corpus."""
        statement = f"SELECT {_COLUMNS}, u.corpus FROM units AS u WHERE u.path = ?"  # noqa: S608
        with self._reading() as db:
            return [(row[-1], _unit(row)) for row in db.execute(statement, (path,)).fetchall()]

    def sent(self, server: str) -> dict[str, bytes]:
        """Return the hashes of the files that were sent to a server, by path."""
        with self._reading() as db:
            statement = "SELECT path, hash FROM sent WHERE server = ?"
            return dict(db.execute(statement, (server,)).fetchall())

    def mark_sent(self, server: str, records: Iterable[Record], gone: Iterable[str]) -> None:
        """Record which files were sent to a server and which were removed from it."""
        with self._writing() as db:
            removed = [(server, path) for path in gone]
            db.executemany("DELETE FROM sent WHERE server = ? AND path = ?", removed)
            rows = [(server, record.path, record.hash) for record in records]
            db.executemany("INSERT OR REPLACE INTO sent VALUES (?, ?, ?)", rows)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _clear_errors():
            yield self._db

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _clear_errors():
            self._db.execute("BEGIN IMMEDIATE")
            self._changes += 1
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


_MARKS = ("application_id", "user_version")
_MISSING = ("no such table", "no such column", "vtable constructor")


@contextlib.contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.ProgrammingError as exc:
        raise RetrievalError(f"the index is closed, or wrongly used: {exc}") from exc
    except sqlite3.DatabaseError as exc:
        if sqlite_file.is_damaged(exc) or str(exc).startswith(_MISSING):
            raise IndexDamagedError(f"the index is damaged: {exc}") from exc
        advice = "make room on the disk, or raise Bounds(index_bytes=...)"
        raise RetrievalError(f"the index cannot be used: {exc}: {advice}") from exc


def _insert(db: sqlite3.Connection, corpus: str, unit: Unit) -> None:
    marks = ", ".join("?" * (len(_FIELDS) + 2))
    columns = ", ".join(f'"{name}"' for name in _FIELDS)
    statement = f"INSERT INTO units (corpus, {columns}, meaning) VALUES ({marks})"  # noqa: S608
    number = db.execute(statement, (corpus, *_values(unit), key_of(unit))).lastrowid
    table = _WORDS[corpus]
    statement = f"INSERT INTO {table} (rowid, name, body, doc) VALUES (?, ?, ?, ?)"  # noqa: S608
    db.execute(statement, (number, *_words(unit)))


def _forget(db: sqlite3.Connection, path: str) -> None:
    statement = f"SELECT {_COLUMNS}, u.id, u.corpus FROM units AS u WHERE u.path = ?"  # noqa: S608
    for row in db.execute(statement, (path,)).fetchall():
        number, table = row[-2], _WORDS[row[-1]]
        statement = f"INSERT INTO {table} ({table}, rowid, name, body, doc) "
        values = ("delete", number, *_words(_unit(row)))
        db.execute(statement + "VALUES (?, ?, ?, ?, ?)", values)
    db.execute("DELETE FROM units WHERE path = ?", (path,))
    db.execute("DELETE FROM files WHERE path = ?", (path,))


def _words(unit: Unit) -> tuple[str, str, str]:
    where = unit.path.replace("/", " ")
    return split_words(f"{unit.name} {where}"), split_words(unit.body), split_words(unit.doc)


def _unit(row: Any) -> Unit:
    return Unit(**dict(zip(_FIELDS, row, strict=False)))
