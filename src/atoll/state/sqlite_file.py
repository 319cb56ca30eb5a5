"""Opens SQLite files that only their owner may read, and words their errors."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_REASONS = {
    sqlite3.SQLITE_NOTADB: "it is not a SQLite file: name another file",
    sqlite3.SQLITE_CORRUPT: "it is damaged: name another file",
    sqlite3.SQLITE_FULL: "no room is left on the disk, or it has reached its largest size",
    sqlite3.SQLITE_BUSY: "another process has kept it locked",
    sqlite3.SQLITE_READONLY: "it cannot be written to",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
}


def open_file(path: Path, *, busy_seconds: float) -> sqlite3.Connection:
    """Open or create a database, without transactions of its own; OSError if it is not a file.

    An existing file is not opened and closed here: that would drop the locks of this process's
    other connections. SQLite itself would create a file that others may read.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return sqlite3.connect(
        path, timeout=busy_seconds, isolation_level=None, check_same_thread=False
    )


def write_ahead(db: sqlite3.Connection) -> None:
    """Let readers go on while one writes; the last writes before a power cut may be lost."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")


def is_damaged(exc: BaseException) -> bool:
    """Return whether an error means a damaged file, not a full disk or a lock."""
    return _code(exc) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def reason(exc: sqlite3.Error) -> str:
    """Return an error in words."""
    return _REASONS.get(_code(exc), str(exc))


def _code(exc: BaseException) -> int:
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF
