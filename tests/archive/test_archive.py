"""Archives of every kind, read through the process that is made for them; and its ends."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from archivekit import make_7z, make_pdf, make_tar, make_zip

import atoll
from atoll.agent.archive import ArchiveLimits, Hit, Member, open_archive
from atoll.agent.archive.process import Process

pytestmark = pytest.mark.spec("R4.5")
FILES = {"docs/a.txt": b"first\nthe needle is here\n", "b.txt": b"no\nneedle too"}


@pytest.fixture(autouse=True)
def nothing_remains():
    """No descriptor and no process outlives a test."""
    before, fds = _children(), len(os.listdir("/proc/self/fd"))
    yield
    assert _children() <= before
    assert len(os.listdir("/proc/self/fd")) <= fds


def _read(path: str) -> str:
    """Return a file of /proc; nothing if its thread has ended."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _children() -> set[str]:
    me = os.getpid()
    tasks = os.listdir(f"/proc/{me}/task")
    return {pid for task in tasks for pid in _read(f"/proc/{me}/task/{task}/children").split()}


def make_zst(files) -> bytes:
    from backports import zstd

    return zstd.compress(make_tar(files))


KINDS = {
    "zip": make_zip,
    "tar": make_tar,
    "tar.gz": lambda files: make_tar(files, ":gz"),
    "tar.bz2": lambda files: make_tar(files, ":bz2"),
    "tar.xz": lambda files: make_tar(files, ":xz"),
    "tar.zst": make_zst,
    "7z": make_7z,
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_is_listed_read_and_searched(kind):
    with open_archive(KINDS[kind](FILES), f"x.{kind}") as archive:
        assert archive.kind == kind
        assert set(archive.members) == {
            Member(name=n, size=len(d), kind="file") for n, d in FILES.items()
        }
        assert {name: archive.read(name) for name in FILES} == FILES
        hits = archive.search("needle")
        assert Hit(member="docs/a.txt", line=2, text="the needle is here") in hits
        assert (len(hits), hits.truncated, hits.unread) == (2, False, ())


def test_a_pdf_is_its_pages():
    with open_archive(make_pdf(b"The first page", b"A needle on the second")) as archive:
        assert archive.kind == "pdf"
        assert [(one.name, one.kind) for one in archive.members] == [
            ("page 1", "page"),
            ("page 2", "page"),
        ]
        assert archive.text("page 1") == "The first page"
        assert archive.search("needle") == [
            Hit(member="page 2", line=1, text="A needle on the second")
        ]


def test_a_damaged_pdf_is_an_error_and_no_crash():
    with pytest.raises(atoll.ArchiveError, match="the pdf cannot be read"):
        open_archive(b"%PDF-1.7\n" + os.urandom(5000))


def test_a_file_is_read_where_it_lies_and_keeps_its_place(tmp_path):
    path = tmp_path / "x.zip"
    path.write_bytes(make_zip(FILES))
    with path.open("rb") as file:
        file.seek(7)
        with open_archive(file) as archive:
            assert archive.read("b.txt") == FILES["b.txt"]
        assert file.tell() == 7
    assert os.listdir(tmp_path) == ["x.zip"]


def test_an_object_that_is_no_plain_file_is_read_by_what_it_gives():
    packed = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(make_tar(FILES))))
    with open_archive(packed) as archive:
        assert archive.kind == "tar"


def test_search_is_by_text_or_by_expression_and_ends_at_the_most_asked_for():
    lines = b"".join(b"line %d\n" % n for n in range(50))
    utf16 = "caf\u00e9 Line".encode("utf-16")
    files = {"a": lines, "b": utf16, "c": "caf\u00e9".encode("latin-1"), "d": b"\0binary line 1"}
    with open_archive(make_zip(files)) as archive:
        assert [hit.line for hit in archive.search(r"line [12]$", regex=True)] == [2, 3]
        assert len(archive.search("line", most=5)) == 5
        assert archive.search("line", most=5).truncated
        assert archive.search("LINE", ignore_case=True)[-1] == Hit(
            member="b", line=1, text="caf\u00e9 Line"
        )
        assert [hit.member for hit in archive.search("caf\u00e9")] == ["b", "c"]
        assert archive.text("c") == "caf\u00e9"
        with pytest.raises(atoll.ConfigError, match="look-around is not supported"):
            archive.search("(?=a)b", regex=True)
        with pytest.raises(atoll.ConfigError, match="at most 10000"):
            archive.search("a", most=10**9)
        with pytest.raises(atoll.ConfigError, match="too long"):
            archive.search("a" * 100_000)


def test_a_member_that_cannot_be_read_does_not_end_a_search():
    limits = ArchiveLimits(max_member_bytes=1000)
    with open_archive(make_zip({"big": bytes(2000), "small": b"needle"}), limits=limits) as archive:
        hits = archive.search("needle")
        assert [hit.member for hit in hits] == ["small"]
        assert [(one.name, "max_member_bytes=1000" in one.reason) for one in hits.unread] == [
            ("big", True)
        ]


def test_a_member_that_is_damaged_does_not_end_a_search():
    data = bytearray(make_zip({"bad": b"needle " * 20, "good": b"needle"}))
    data[40] ^= 0xFF
    with open_archive(bytes(data)) as archive:
        hits = archive.search("needle")
        assert [hit.member for hit in hits] == ["good"]
        assert hits.unread[0].reason.startswith("'bad' is damaged: ")


def test_what_is_not_there_is_said():
    archive = open_archive(make_zip(FILES))
    with archive, pytest.raises(atoll.ArchiveError, match="has no member 'nope'"):
        archive.read("nope")
    with pytest.raises(atoll.ArchiveError, match="closed"):
        archive.read("b.txt")


def test_the_reader_that_was_killed_is_started_again_for_the_next_member():
    with open_archive(make_zip(FILES)) as archive:
        os.kill(archive._process.pid, 9)
        with pytest.raises(atoll.ArchiveError, match=r"crashed its reader .signal 9."):
            archive.read("b.txt")
        assert archive.read("b.txt") == FILES["b.txt"]


def bad_process(operation: str, **settings):
    """What a hostile file may do to its reader, done by a reader that does it to itself."""
    given = {"memory": 1 << 28, "seconds": 20, "most": 1000} | settings
    process = Process("bad_reader", **given)
    try:
        process.start()
        return process.ask(operation)
    finally:
        process.close()


@pytest.fixture
def bad_reader(monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))


@pytest.mark.spec("R4.20")
@pytest.mark.usefixtures("bad_reader")
@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ("crash", r"crashed its reader \(signal 11\)"),
        ("leave", r"crashed its reader \(exit code 3\)"),
        ("eat", "what it needs is more than max_memory_bytes=268435456"),
        ("flood", "an answer of 4294967295 bytes is over the limit"),
        ("babble", "sent a malformed answer"),
        ("deep", "sent a malformed answer"),
        ("recurse", "max_memory_bytes"),
        ("write", r"File too large|signal 25"),
        ("print", "there was no answer but this"),
    ],
)
def test_a_reader_that_a_file_takes_over_or_down_does_no_harm(operation, error):
    with pytest.raises(atoll.ArchiveError, match=error):
        bad_process(operation)


@pytest.mark.spec("R4.20")
@pytest.mark.usefixtures("bad_reader")
@pytest.mark.parametrize("operation", ["spin", "sleep"])
def test_a_reader_that_hangs_is_killed_at_its_time(operation, monkeypatch):
    monkeypatch.setattr("atoll.agent.archive.process._GRACE_SECONDS", 0.1)
    with pytest.raises(atoll.ArchiveLimitError, match=r"max_seconds=0\.2"):
        bad_process(operation, seconds=0.2)


@pytest.mark.usefixtures("bad_reader")
def test_close_ends_a_reader_at_work_in_another_thread():
    process = Process("bad_reader", memory=1 << 30, seconds=60, most=1000)
    process.start()
    errors: list[Exception] = []

    def work() -> None:
        try:
            process.ask("sleep")
        except atoll.ArchiveError as exc:
            errors.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.1)
    process.close()
    thread.join(30)
    assert [str(error) for error in errors] == ["the archive was closed meanwhile"]
    assert process.pid is None


def test_without_re2_an_expression_is_refused_in_words_behind_the_walls(tmp_path):
    code = (
        "import sys; sys.modules['re2'] = None\n"
        "from atoll.search.patterns import Pattern\n"
        "import subprocess\n"
        "def refuse(*_, **__): raise PermissionError(1, 'not here')\n"
        "subprocess.Popen = refuse\n"
        "Pattern('a.c', regex=True, ignore_case=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ConfigError: regular expressions need google-re2 here; install it" in done.stderr
