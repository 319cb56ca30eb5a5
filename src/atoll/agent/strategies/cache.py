"""Values by the hash of what they were computed from: in memory, or in a file for the next time."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from typing import TYPE_CHECKING, Any

from atoll.concurrency import forks
from atoll.errors import ConfigError
from atoll.state.sqlite_file import open_file, reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

MAX_KEPT, BUSY_SECONDS = 100_000, 5.0
_TABLE = "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, value TEXT NOT NULL)"


class ValueCache:
    """Keeps values of this process; with a path, also those of earlier ones."""

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._lock = path, forks.new_lock()
        self._known: dict[bytes, Any] = {}

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """Return the values that are known, by key."""
        with self._lock:
            found = {key: self._known[key] for key in keys if key in self._known}
            rest = [key for key in keys if key not in found]
            if self._path is None or not rest:
                return found
            with self._opened() as db:
                for key in rest:
                    row = db.execute("SELECT value FROM answers WHERE key = ?", (key,)).fetchone()
                    if row is not None:
                        found[key] = self._known[key] = json.loads(row[0])
            return found

    def put(self, values: Mapping[bytes, Any]) -> None:
        """Keep values; beyond MAX_KEPT, this process forgets the oldest."""
        with self._lock:
            self._known.update(values)
            while len(self._known) > MAX_KEPT:
                del self._known[next(iter(self._known))]
            if self._path is not None and values:
                rows = [(key, json.dumps(value)) for key, value in values.items()]
                with self._opened() as db:
                    db.execute("BEGIN IMMEDIATE")
                    db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)
                    db.execute("COMMIT")

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Yield the file as a database; only this user can read it."""
        assert self._path is not None
        try:
            with contextlib.closing(open_file(self._path, busy_seconds=BUSY_SECONDS)) as db:
                db.execute(_TABLE)
                yield db
        except (OSError, sqlite3.Error) as exc:
            why = reason(exc) if isinstance(exc, sqlite3.Error) else exc.strerror
            raise ConfigError(f"the cache of queries {self._path} cannot be used: {why}") from None
