"""A file that takes its reader over has nothing in reach: tried from inside, by root and others."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import attempts
import pytest
from archivekit import make_7z, make_pdf, make_tar, make_zip

import atoll
from atoll.agent.archive import open_archive, process
from atoll.agent.archive.process import Process

pytestmark = pytest.mark.spec("R4.5", "R4.20")
HERE = Path(__file__).resolve().parent
USER = 12345
VARIANTS = 200
WALLS = {"confined": True, "thread": "refused", "read": "text"}


@pytest.fixture(autouse=True)
def attempts_are_found(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture
def no_walls(monkeypatch):
    """As on a machine whose system calls are not known."""
    boot = "import_module(sys.argv[1])"
    other = "import_module('atoll.jail.walls.syscalls').ARCH = 'none'; "
    monkeypatch.setattr(process, "_BOOT", process._BOOT.replace(boot, other + boot))


def test_a_reader_that_is_taken_over_reaches_no_file_socket_or_process():
    found = attempts.report()
    assert found.pop("outcomes") == dict.fromkeys(attempts.ATTEMPTS, "refused")
    assert found == WALLS
    assert not os.path.exists("/tmp/atoll-was-here")


def test_as_an_ordinary_user_too():
    if os.geteuid() != 0:
        pytest.skip("these tests run as an ordinary user already")
    found = json.loads(_as_user(_interpreter(), str(HERE / "attempts.py")).stdout)
    assert found.pop("outcomes") == dict.fromkeys(attempts.ATTEMPTS, "refused")
    assert found == WALLS


@pytest.mark.usefixtures("no_walls")
def test_where_there_are_no_walls_these_attempts_get_through_and_that_is_said():
    reader = Process("attempts", memory=1 << 29, seconds=30, most=1000)
    try:
        reader.start()
        assert not reader.confined
        found = reader.ask("outcomes", pid=os.getpid(), harmless=True)[0]
    finally:
        reader.close()
    assert found == dict.fromkeys(attempts.HARMLESS, "got through")
    with open_archive(make_zip({"a": b"text"})) as archive:
        assert (archive.confined, archive.text("a")) == (False, "text")


@pytest.mark.parametrize(
    "data",
    [
        make_zip({"a": b"x"}),
        make_tar({"a": b"x"}, ":xz"),
        make_7z({"a": b"x"}),
        make_pdf(b"x"),
    ],
    ids=["zip", "tar.xz", "7z", "pdf"],
)
def test_every_kind_is_read_behind_walls_also_by_a_reader_that_was_started_again(data):
    with open_archive(data) as archive:
        assert archive.confined
        os.kill(archive._process.pid, 9)
        with pytest.raises(atoll.ArchiveError, match="crashed its reader"):
            archive.read(archive.members[0].name)
        assert archive.read(archive.members[0].name) == b"x"
        assert archive.confined


def test_a_7z_whose_library_starts_a_thread_is_read_behind_walls():
    import py7zr

    data = make_7z({"a": b"needle " * 1000}, filters=[{"id": py7zr.FILTER_PPMD, "mem": "1m"}])
    with open_archive(data) as archive:
        assert archive.confined
        assert archive.read("a") == b"needle " * 1000


def test_damaged_pdfs_are_texts_or_errors_and_the_host_lives():
    """200 of them; one that takes the reader down is one error, and the next gets a new reader."""
    reader = Process("attempts", memory=1 << 29, seconds=30, most=1 << 20)
    ends: collections.Counter[str] = collections.Counter()
    try:
        for seed in range(VARIANTS):
            if not reader.running:
                reader.start()
            ends[_end(reader, seed)] += 1
    finally:
        reader.close()
    assert sum(ends.values()) == VARIANTS
    assert set(ends) <= {"text", "nothing", "error"}
    assert min(ends["text"], ends["error"]) > 20
    with open_archive(make_pdf(b"A page")) as archive:
        assert archive.text("page 1") == "A page"


def _end(reader: Process, seed: int) -> str:
    try:
        return "text" if reader.ask("damaged", seed=seed)[1] else "nothing"
    except atoll.ArchiveError as exc:
        known = str(exc).startswith(("the pdf cannot be read", "page ", "it crashed its reader"))
        return "error" if known else str(exc)


def _interpreter() -> str:
    """A Python, 3.11 or newer, that the user may execute."""
    probe = "import sys; sys.exit(sys.version_info < (3, 11))"
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            if _as_user(candidate, "-c", probe).returncode == 0:
                return candidate
        except OSError:
            continue
    pytest.skip(f"no Python 3.11 or newer that user {USER} may execute: not even /usr/bin/python3")


def _as_user(*command: str) -> subprocess.CompletedProcess[str]:
    source = Path(atoll.__file__).resolve().parents[1]
    return subprocess.run(
        command,
        user=USER,
        group=USER,
        extra_groups=[],
        env={"PYTHONPATH": f"{source}:{HERE}", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
