"""Where saved states are kept between sessions: by session id, for a while, in a bounded place.

Blobs are kept as they are. They are signed, so whoever can write to the store can lose a state
but not forge one.
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

from atoll.errors import StateError
from atoll.policy import check_positive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    """What a store holds now."""

    count: int
    bytes: int


class StateStore(Protocol):
    """Keeps saved states by session id."""

    def put(self, session_id: str, blob: bytes) -> None:
        """Keep a state, in place of the one before; StateError leaves that one there."""
        ...

    def get(self, session_id: str) -> bytes | None:
        """The state, if it is there and not too old."""
        ...

    def delete(self, session_id: str) -> None:
        """Forget a state; one that is not there is no fault."""
        ...

    def sweep(self) -> int:
        """Forget what is too old or too much; how many that were."""
        ...

    def stats(self) -> StoreStats:
        """What is in it."""
        ...


class SqliteStateStore:
    """States in one SQLite file that threads and processes share."""

    def __init__(
        self,
        path: str | Path,
        ttl_seconds: float = 7200,
        max_bytes: int = 1 << 30,
        now: Callable[[], float] = time.time,
    ) -> None:
        check_positive("ttl_seconds", ttl_seconds)
        check_positive("max_bytes", max_bytes)
        self._path, self._ttl, self._max_bytes = Path(path), ttl_seconds, max_bytes
        self._now = now
        self._local = threading.local()
        self._open: set[sqlite3.Connection] = set()
        with self._transaction() as db:
            db.execute("SELECT COUNT(*) FROM states").fetchone()

    def put(self, session_id: str, blob: bytes) -> None:
        """Keep a state; the oldest others go if there is no room."""
        if len(blob) > self._max_bytes:
            raise StateError(f"a state of {len(blob):,} bytes: the store holds {self._max_bytes:,}")
        row = (session_id, self._now(), len(blob), blob)
        with self._transaction() as db:
            db.execute("REPLACE INTO states VALUES (?, ?, ?, ?)", row)
            self._sweep(db)

    def get(self, session_id: str) -> bytes | None:
        """The state, if it is there and not too old."""
        query = "SELECT blob FROM states WHERE session = ? AND saved > ?"
        with self._transaction() as db:
            row = db.execute(query, (session_id, self._now() - self._ttl)).fetchone()
        return row[0] if row else None

    def delete(self, session_id: str) -> None:
        """Forget a state; one that is not there is no fault."""
        with self._transaction() as db:
            db.execute("DELETE FROM states WHERE session = ?", (session_id,))

    def sweep(self) -> int:
        """Forget what is too old or too much; how many that were."""
        with self._transaction() as db:
            return self._sweep(db)

    def stats(self) -> StoreStats:
        """What is in it, the too old not counted."""
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
        return old.rowcount + db.execute(_KEEP_NEWEST, (self._max_bytes,)).rowcount

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; StateError says what the database or the disk has against it."""
        try:
            db = self._connection()
            with db:
                yield db
        except (sqlite3.Error, OSError) as exc:
            self.close()
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                raise StateError(self._set_aside()) from exc
            raise StateError(f"the states in {self._path} cannot be used: {exc}") from exc

    def _connection(self) -> sqlite3.Connection:
        """The one of this thread and process."""
        known: sqlite3.Connection | None = getattr(self._local, "db", None)
        if known is not None and self._local.owner == os.getpid():
            return known
        self._path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self._path, timeout=BUSY_SECONDS, check_same_thread=False)
        self._open.add(db)
        self._local.db, self._local.owner = db, os.getpid()
        self._local.inode = os.stat(self._path).st_ino
        os.chmod(self._path, 0o600)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.executescript(_SCHEMA)
        return db

    def _set_aside(self) -> str:
        """Rename a damaged file, so that the next call creates a new one."""
        aside = f"{self._path}.damaged-{time.time_ns()}"
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == self._local.inode:  # else another process has done it
                for suffix in ("", "-wal", "-shm"):
                    os.rename(f"{self._path}{suffix}", aside + suffix)
        return f"the states in {self._path} are damaged: the file is now {aside}; try again"
