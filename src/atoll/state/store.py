"""Stores saved states between sessions: by session id, limited in time and size.

Blobs are stored unchanged. They are signed: a process that can write to the store can delete a
state, but not forge one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from atoll.errors import StateError, StateTooLargeError
from atoll.policy import check_positive
from atoll.state import sqlite_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

BUSY_SECONDS = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS states (
    session TEXT PRIMARY KEY, saved REAL NOT NULL, size INTEGER NOT NULL, blob BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_age ON states (saved);
"""
_KEEP_NEWEST = """
DELETE FROM states WHERE session IN (
    SELECT session FROM (
        SELECT session, SUM(size) OVER (ORDER BY saved DESC, session) AS total FROM states
    ) WHERE total > ?
)
"""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """The present content of a store."""

    count: int
    bytes: int


class StateStore(Protocol):
    """Keeps saved states by session id."""

    def put(self, session_id: str, blob: bytes) -> None:
        """Store a state in place of an earlier one; on StateError the earlier one stays."""
        ...

    def get(self, session_id: str) -> bytes | None:
        """Return the state; None if it is missing, or it has expired."""
        ...

    def delete(self, session_id: str) -> None:
        """Delete a state; a missing one is not an error."""
        ...

    def sweep(self) -> int:
        """Delete expired states and those over the size limit; return how many."""
        ...

    def stats(self) -> StoreStats:
        """Return the present content."""
        ...


class SqliteStateStore:
    """States in one SQLite file that threads and processes share."""

    def __init__(
        self,
        path: str | Path,
        ttl_seconds: float = 7200,
        max_bytes: int = 1 << 30,
        now: Callable[[], float] = time.time,
        *,
        drop_oldest: bool = True,
    ) -> None:
        """`drop_oldest`: whether a full store deletes its oldest states; if not, it refuses new."""
        check_positive("ttl_seconds", ttl_seconds)
        check_positive("max_bytes", max_bytes)
        self._path, self._ttl, self._max_bytes = Path(path), ttl_seconds, max_bytes
        self._now, self._drop_oldest = now, drop_oldest
        self._local = threading.local()
        self._open: set[sqlite3.Connection] = set()
        with self._transaction() as db:
            db.execute("SELECT COUNT(*) FROM states").fetchone()

    def put(self, session_id: str, blob: bytes) -> None:
        """Store a state; if it does not fit, delete the oldest others or raise StateError."""
        if len(blob) > self._max_bytes:
            text = f"a state of {len(blob):,} bytes: the store holds {self._max_bytes:,}"
            raise StateTooLargeError(text, limit=self._max_bytes, size=len(blob))
        row = (session_id, self._now(), len(blob), blob)
        with self._transaction() as db:
            db.execute("REPLACE INTO states VALUES (?, ?, ?, ?)", row)
            self._sweep(db)
            # Raise StateError if the states are too large together: the transaction is undone.
            total: int = db.execute("SELECT SUM(size) FROM states").fetchone()[0]
            if total > self._max_bytes:
                raise StateError(f"the store is full: it holds {self._max_bytes:,} bytes")

    def get(self, session_id: str) -> bytes | None:
        """Return the state; None if it is missing, or it has expired."""
        query = "SELECT blob FROM states WHERE session = ? AND saved > ?"
        with self._transaction() as db:
            row = db.execute(query, (session_id, self._now() - self._ttl)).fetchone()
        return row[0] if row else None

    def delete(self, session_id: str) -> None:
        """Delete a state; a missing one is not an error."""
        with self._transaction() as db:
            db.execute("DELETE FROM states WHERE session = ?", (session_id,))

    def keep_only(self, session_ids: Collection[str]) -> set[str]:
        """Delete the states of all other sessions; return those of these that have one."""
        with self._transaction() as db:
            known = {row[0] for row in db.execute("SELECT session FROM states")}
            gone = [(session_id,) for session_id in known.difference(session_ids)]
            db.executemany("DELETE FROM states WHERE session = ?", gone)
        return known.intersection(session_ids)

    def sweep(self) -> int:
        """Delete expired states and those over the size limit; return how many."""
        with self._transaction() as db:
            return self._sweep(db)

    def stats(self) -> StoreStats:
        """Return the present content, without expired states."""
        query = "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM states WHERE saved > ?"
        with self._transaction() as db:
            count, size = db.execute(query, (self._now() - self._ttl,)).fetchone()
        return StoreStats(count=count, bytes=size)

    def close_all(self) -> None:
        """Close the connections of all threads; none may be in use."""
        while self._open:
            self._open.pop().close()
        self._local = threading.local()

    def close(self) -> None:
        """Close this thread's connection."""
        known: sqlite3.Connection | None = getattr(self._local, "db", None)
        if known is not None:
            self._open.discard(known)
            known.close()
        self._local.db = None

    def _sweep(self, db: sqlite3.Connection) -> int:
        old = db.execute("DELETE FROM states WHERE saved <= ?", (self._now() - self._ttl,))
        if not self._drop_oldest:
            return old.rowcount
        return old.rowcount + db.execute(_KEEP_NEWEST, (self._max_bytes,)).rowcount

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a block as one transaction; StateError says why the database failed."""
        try:
            db = self._connection()
            with db:
                yield db
        except (sqlite3.Error, OSError) as exc:
            self.close()
            if sqlite_file.is_damaged(exc):
                raise StateError(self._set_aside()) from exc
            raise StateError(f"the states in {self._path} cannot be used: {exc}") from exc

    def _connection(self) -> sqlite3.Connection:
        """Return the connection of this thread and process."""
        known: sqlite3.Connection | None = getattr(self._local, "db", None)
        if known is not None and self._local.owner == os.getpid():
            return known
        self._path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite_file.open_file(self._path, busy_seconds=BUSY_SECONDS)
        self._path.chmod(0o600)  # it may be a copy that was restored
        db.isolation_level = "DEFERRED"  # `with db` is a transaction
        self._open.add(db)
        self._local.db, self._local.owner = db, os.getpid()
        self._local.inode = os.stat(self._path).st_ino
        sqlite_file.write_ahead(db)
        db.executescript(_SCHEMA)
        return db

    def _set_aside(self) -> str:
        """Rename a damaged file, so that the next call creates a new one."""
        aside = f"{self._path}.damaged-{time.time_ns()}"
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == self._local.inode:  # or another process has
                for suffix in ("", "-wal", "-shm"):
                    os.rename(f"{self._path}{suffix}", aside + suffix)
        return f"the states in {self._path} are damaged: the file is now {aside}; try again"
