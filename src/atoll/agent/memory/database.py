"""The SQLite file of an episodic memory: opened for each operation, shared by many processes.

Each operation has a connection of its own, so that threads and forked processes share nothing.
Every failure of SQLite becomes a MemoryStoreError that says what to do.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.errors import MemoryStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

APPLICATION_ID = 0x41544C4D
"""Marks our files, so that another program's database is never written to."""
VERSION = 2
BUSY_SECONDS = 5.0
MAX_BYTES = 256 << 20
PAGE_BYTES = 4096
_SCHEMA = """
CREATE TABLE items (
    id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, intent TEXT NOT NULL, embedder TEXT NOT NULL,
    vector BLOB NOT NULL, strategy TEXT NOT NULL, done TEXT NOT NULL, outcome TEXT NOT NULL,
    q REAL NOT NULL, tokens INTEGER NOT NULL, context_tokens INTEGER NOT NULL,
    runs INTEGER NOT NULL, created REAL NOT NULL, used REAL NOT NULL,
    efficiency REAL NOT NULL DEFAULT 0
)
"""
_FROM_1 = "ALTER TABLE items ADD COLUMN efficiency REAL NOT NULL DEFAULT 0"
_INDEX = "CREATE INDEX by_use ON items (namespace, used)"


class Database:
    """One file, created by the first operation, also if that only reads."""

    def __init__(
        self, path: str | os.PathLike[str], busy_seconds: float, max_bytes: int = MAX_BYTES
    ) -> None:
        self.path = Path(path).expanduser().absolute()
        self._busy, self._max_pages = busy_seconds, max(16, max_bytes // PAGE_BYTES)

    @contextlib.contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield a connection inside a transaction, which an exception undoes."""
        try:
            with contextlib.closing(self._connect()) as db:
                self._identify(db)
                db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                try:
                    yield db
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
        except sqlite3.Error as exc:
            raise MemoryStoreError(f"the memory {self.path}: {_reason(exc)}") from exc
        except OSError as exc:
            raise MemoryStoreError(f"the memory {self.path}: {exc.strerror or exc}") from exc

    def _connect(self) -> sqlite3.Connection:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        fd = os.open(self.path, flags, 0o600)  # SQLite would let others read it
        try:
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
        finally:
            os.close(fd)
        if not regular:
            raise MemoryStoreError(f"the memory {self.path} is not a regular file")
        db = sqlite3.connect(self.path, timeout=self._busy, isolation_level=None)
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute(f"PRAGMA max_page_count = {self._max_pages}")
        return db

    def _identify(self, db: sqlite3.Connection) -> None:
        """Check that the file is ours; make the tables if it is empty."""
        if _is_empty(db):
            with contextlib.suppress(sqlite3.OperationalError):  # another process is creating it
                db.execute("PRAGMA journal_mode = WAL")
            db.execute("BEGIN IMMEDIATE")
            if _is_empty(db):
                _create(db)
            db.execute("COMMIT")
        application, version = _mark(db)
        if application != APPLICATION_ID:
            raise MemoryStoreError(f"{self.path} is another program's database: name another file")
        if version > VERSION:
            raise MemoryStoreError(f"{self.path} is of a newer Atoll (format {version})")
        if version < VERSION:
            _upgrade(db)
        db.execute("PRAGMA synchronous = NORMAL")


def _create(db: sqlite3.Connection) -> None:
    db.execute(_SCHEMA)
    db.execute(_INDEX)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")


def _upgrade(db: sqlite3.Connection) -> None:
    """Bring the tables of an older Atoll up to date, unless another process just has."""
    db.execute("BEGIN IMMEDIATE")
    if _mark(db)[1] < VERSION:
        db.execute(_FROM_1)
        db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def _is_empty(db: sqlite3.Connection) -> bool:
    tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    return _mark(db) == (0, 0) and not tables


def _mark(db: sqlite3.Connection) -> tuple[int, int]:
    application = db.execute("PRAGMA application_id").fetchone()[0]
    return application, db.execute("PRAGMA user_version").fetchone()[0]


def _reason(exc: sqlite3.Error) -> str:
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    known = {
        sqlite3.SQLITE_NOTADB: "it is not a SQLite file: name another file",
        sqlite3.SQLITE_CORRUPT: "it is damaged: name another file",
        sqlite3.SQLITE_FULL: "no room is left on the disk, or it has reached its largest size",
        sqlite3.SQLITE_BUSY: "another process has kept it locked",
        sqlite3.SQLITE_READONLY: "it cannot be written to",
        sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
        sqlite3.SQLITE_IOERR: "the disk reports an error",
    }
    return known.get(code, str(exc))
