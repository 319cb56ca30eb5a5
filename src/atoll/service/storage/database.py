"""What outlives the process, in one SQLite file: keys, sessions, states, contexts, answers by key.

Rows are small and written by the event loop itself: with WAL a write takes microseconds.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.service import clock
from atoll.service.storage.folder import prepare
from atoll.state import sqlite_file

if TYPE_CHECKING:
    from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, digest BLOB NOT NULL,
    scopes TEXT NOT NULL, quota TEXT NOT NULL, created REAL NOT NULL, expires REAL,
    revoked REAL, used REAL);
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, parent TEXT, created REAL NOT NULL,
    ended REAL, reason TEXT);
CREATE INDEX IF NOT EXISTS sessions_by_end ON sessions (ended);
CREATE INDEX IF NOT EXISTS sessions_by_parent ON sessions (parent);
CREATE TABLE IF NOT EXISTS saved_sessions (id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, created REAL NOT NULL, ended REAL,
    facts TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS runs_by_tenant ON runs (tenant, created);
CREATE TABLE IF NOT EXISTS run_sizes (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, size INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS run_sizes_by_tenant ON run_sizes (tenant);
CREATE TABLE IF NOT EXISTS objects (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, tenant TEXT NOT NULL, digest TEXT NOT NULL,
    size INTEGER NOT NULL, facts TEXT NOT NULL, created REAL NOT NULL, expires REAL NOT NULL);
CREATE INDEX IF NOT EXISTS objects_by_digest ON objects (digest);
CREATE INDEX IF NOT EXISTS objects_by_tenant ON objects (tenant);
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, storage TEXT NOT NULL, tenant TEXT NOT NULL, owner TEXT NOT NULL,
    name TEXT NOT NULL, read_only INTEGER NOT NULL, object TEXT NOT NULL, created REAL NOT NULL);
CREATE INDEX IF NOT EXISTS files_by_storage ON files (storage);
CREATE TABLE IF NOT EXISTS answers (
    tenant TEXT, scope TEXT, key TEXT, fingerprint BLOB NOT NULL, status INTEGER,
    body BLOB, created REAL NOT NULL, PRIMARY KEY (tenant, scope, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage (
    day TEXT, key TEXT, executions INTEGER NOT NULL, cpu_seconds REAL NOT NULL,
    PRIMARY KEY (day, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, key TEXT NOT NULL,
    tenant TEXT NOT NULL, action TEXT NOT NULL, target TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS preview_usage (
    day TEXT, key TEXT, requests INTEGER NOT NULL, bytes INTEGER NOT NULL,
    PRIMARY KEY (day, key)) WITHOUT ROWID;
"""
KEPT_SESSIONS_SECONDS = 7 * 86_400
VERSION = 1
"""The number of this schema, which the file has as its `user_version`."""


class Database:
    """The service's database. One process writes; the command line may add and revoke keys."""

    def __init__(self, folder: Path) -> None:
        prepare(folder)
        self.path = folder / "service.sqlite3"
        try:
            self._db = _opened(self.path)
        except sqlite3.Error as exc:
            raise ConfigError(f"the database {self.path} cannot be used: {exc}") from None

    @property
    def changes(self) -> int:
        """How many rows this process has changed."""
        return self._db.total_changes

    def one(self, query: str, *values: Any) -> sqlite3.Row | None:
        """Return the first row of a query, or None."""
        try:
            row: sqlite3.Row | None = self._db.execute(query, values).fetchone()
        except UnicodeEncodeError:
            raise _half_pair() from None
        return row

    def all(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """Return every row of a query; its values in order, or one dict of named ones."""
        given = values[0] if values and isinstance(values[0], dict) else values
        return self._run(query, given).fetchall()

    def write(self, query: str, *values: Any) -> int:
        """Change rows; return how many were changed."""
        return self._run(query, values).rowcount

    def start(self) -> int:
        """Note that sessions that no process saved are lost; return how many there were."""
        query = (
            "UPDATE sessions SET ended = ?, reason = 'lost' WHERE ended IS NULL"
            " AND id NOT IN (SELECT id FROM saved_sessions)"
        )
        return self.write(query, clock.now())

    def sweep(self, answer_seconds: float) -> None:
        """Delete rows that are too old."""
        now = clock.now()
        self.write("DELETE FROM answers WHERE created < ?", now - answer_seconds)
        self.write("DELETE FROM sessions WHERE ended < ?", now - KEPT_SESSIONS_SECONDS)
        self.write("DELETE FROM files WHERE object NOT IN (SELECT id FROM objects)")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _run(self, query: str, values: Any) -> sqlite3.Cursor:
        try:
            return self._db.execute(query, values)
        except UnicodeEncodeError:
            raise _half_pair() from None


def _half_pair() -> ConfigError:
    return ConfigError("a text has half of a surrogate pair: send valid UTF-8")


def _opened(path: Path) -> sqlite3.Connection:
    """Open the database, and make the tables that it lacks; ConfigError if another version did."""
    db = sqlite_file.open_file(path, busy_seconds=5)
    path.chmod(0o600)  # it may be a copy that was restored
    db.row_factory = sqlite3.Row
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        text = f"{path} was written by a newer Atoll (schema {version}, this one has {VERSION})"
        raise ConfigError(f"{text}: install that version, or name another folder")
    sqlite_file.write_ahead(db)
    db.executescript(_SCHEMA)
    _check_columns(db, path)
    db.execute(f"PRAGMA user_version = {VERSION}")
    return db


def _check_columns(db: sqlite3.Connection, path: Path) -> None:
    """Refuse tables of a version before the first release, which nothing converts."""
    wanted = sqlite3.connect(":memory:")
    wanted.executescript(_SCHEMA)
    for (table,) in wanted.execute("SELECT name FROM sqlite_schema WHERE type = 'table'"):
        query = f"SELECT name FROM pragma_table_info('{table}')"  # noqa: S608 - our own names
        if [tuple(row) for row in db.execute(query)] != wanted.execute(query).fetchall():
            text = f"the table {table!r} of {path} is of another version of Atoll"
            raise ConfigError(f"{text}: move the file away, or name another folder")
    wanted.close()
