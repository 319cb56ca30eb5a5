"""The daemon's log: private, and bounded by two files."""

from __future__ import annotations

import logging

from atoll.daemon import process


def test_a_long_log_is_begun_anew_and_one_older_file_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "LOG_BYTES", 1000)
    log, path = logging.getLogger("atoll.test"), tmp_path / "daemon.log"
    with process.logging_to(path, log):
        for number in range(100):
            log.info("line %d", number)
    texts = [(tmp_path / name).read_text() for name in ("daemon.log.1", "daemon.log")]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["daemon.log", "daemon.log.1"]
    assert all(len(text) < 1100 for text in texts)
    assert "".join(texts).splitlines()[-1].endswith("line 99")
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o600}
