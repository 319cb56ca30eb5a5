"""SQLite files of the stores: private from the start, opened without dropping locks."""

from __future__ import annotations

import os
import sqlite3
import stat

import pytest

from atoll.state import sqlite_file


def test_a_new_file_is_its_owners_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        with sqlite_file.open_file(tmp_path / "new.db", busy_seconds=1) as db:
            sqlite_file.write_ahead(db)
            db.execute("CREATE TABLE t (x)")
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"new.db": 0o600, "new.db-wal": 0o600, "new.db-shm": 0o600}


def test_another_connection_of_the_process_keeps_its_lock(tmp_path):
    path = tmp_path / "locked.db"
    first = sqlite_file.open_file(path, busy_seconds=1)
    first.execute("CREATE TABLE t (x)")
    first.execute("BEGIN EXCLUSIVE")
    sqlite_file.open_file(path, busy_seconds=1).close()
    writer = os.fork()
    if not writer:
        try:
            sqlite3.connect(path, timeout=0).execute("INSERT INTO t VALUES (1)")
        except sqlite3.OperationalError:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(writer, 0)
    assert os.waitstatus_to_exitcode(status) == 3, "it is locked"
    first.close()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_only_regular_files_are_opened(tmp_path, make):
    make(tmp_path / "odd")
    with pytest.raises(OSError, match="not a regular file"):
        sqlite_file.open_file(tmp_path / "odd", busy_seconds=1)
