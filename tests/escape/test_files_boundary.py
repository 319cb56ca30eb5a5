"""Files of a hostile guest, used by the host: nothing else is reached, held up, or used up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tracemalloc
from types import SimpleNamespace

import pytest

import atoll.aio
from atoll.errors import ConfigError, SandboxError
from atoll.files import folder as owner
from atoll.files.direct import AT_ONCE
from atoll.files.folder import OpenFolders
from atoll.files.searcher import Searcher
from atoll.files.types import checked
from atoll.guest.shared.texts import MAX_LINES
from atoll.guest.shared.workspace import MAX_FOUND, Workspace
from atoll.search import blocks

ROUNDS = 3_000
GREP = {"path": "/", "glob": None, "regex": False, "ignore_case": False, "max_results": 100}


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "host" / "guest"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def space(root):
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    yield Workspace(OpenFolders({"/app": fd}), Searcher())
    os.close(fd)


@pytest.fixture
async def native_box():
    async with atoll.aio.create_sandbox(backend="native") as box:
        yield box


@contextlib.contextmanager
def meanwhile(code, folder):
    """A process that does it again and again, in the folder."""
    steps = "".join(f"    try: {step}\n    except OSError: pass\n" for step in code)
    program = f"import os\nprint(flush=True)\nwhile True:\n{steps}"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=folder, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


@pytest.mark.spec("R3.11")
@pytest.mark.parametrize("path", ["a/../evil", "a/../evil/x"])
def test_a_way_back_does_not_lead_out_when_the_way_there_has_gone(space, root, path):
    """`a` leads to the top itself; from there, `..` would be what is above."""
    swap = ["os.symlink('.', 'a')", "os.unlink('a')", "os.rmdir('a')"]
    with meanwhile(swap, root):
        for _ in range(ROUNDS):
            space.upload(path, b"x")
            if os.listdir(root.parent) != ["guest"]:
                break
    assert os.listdir(root.parent) == ["guest"]


@pytest.mark.spec("R3.11")
@pytest.mark.parametrize("operation", ["upload", "edit", "write", "read", "grep", "glob"])
def test_a_folder_that_is_swapped_for_a_link_leads_nowhere(space, root, operation):
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret\n")
    (outside / "x").mkdir()
    (root / "mine").mkdir()
    (root / "mine" / "file").write_text("mine\n")
    (root / "link").symlink_to("../outside")
    swap = ["os.rename('mine', 'sub')", "os.rename('sub', 'mine')"]
    swap += ["os.rename('link', 'sub')", "os.rename('sub', 'link')", "os.unlink('sub/new')"]
    asked = {
        "upload": {"path": "sub/file", "data": b"mine, evil"},
        "edit": {"path": "sub/file", "old": "e", "new": "e", "replace_all": True},
        "write": {"path": "sub/new", "content": "evil"},
        "read": {"path": "sub/file", "offset": 0, "limit": 9},
        "grep": {"pattern": "secret", **GREP},
        "glob": {"pattern": "*/x", "path": "/"},
    }[operation]
    with meanwhile(swap, root):
        answers = [str(space.run(operation, asked)) for _ in range(ROUNDS // 4)]
    assert (outside / "file").read_text() == "secret\n"
    assert sorted(os.listdir(outside)) == ["file", "x"]
    assert not [answer for answer in answers if "secret" in answer or "/x'" in answer]


def test_a_file_that_is_walked_is_let_go_of(space, root):
    (root / "file").write_text("x\n")
    before = os.listdir("/proc/self/fd")
    for _ in range(20):
        assert space.glob("*", "file")["entries"]
        assert space.grep("x", **{**GREP, "path": "file"})["matches"]
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_an_edit_does_not_blow_up_a_file(space, root):
    (root / "file").write_bytes(b"a" * 1_000_000)
    error = space.edit("file", "a", "b" * 1_000_000, replace_all=True)["error"]
    size = "it would have 1,000,000,000,000 bytes; the limit is 536,870,912"
    assert error == f"Error: File 'file' cannot be edited: {size}"
    assert (root / "file").stat().st_size == 1_000_000


def test_a_page_of_many_lines_takes_no_memory_for_the_others(space, root):
    (root / "file").write_bytes(b"ab\n" * 3_000_000)
    tracemalloc.start()
    text = space.read("file", 2_999_998, 2_000)["text"]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert text == "2999999\tab\n3000000\tab"
    assert most < 3 * (root / "file").stat().st_size


@pytest.mark.parametrize(
    ("operation", "params"), [("read", {"offset": 0, "limit": 10**18}), ("read_raw", {})]
)
def test_more_lines_than_a_host_should_hold_are_refused(space, root, operation, params):
    (root / "file").write_bytes(b"\n" * (MAX_LINES + 1))
    answer = str(space.run(operation, {"path": "file", **params}))
    assert "1,000,001 lines were asked for; at most 1,000,000 are returned at once" in answer


def test_lists_end_somewhere(space, root):
    (root / "file").write_bytes(b"x\n" * (MAX_FOUND + 1))
    found = space.grep("x", **{**GREP, "max_results": 10**18})
    assert (len(found["matches"]), found["truncated"]) == (MAX_FOUND, True)
    for number in range(MAX_FOUND):
        (root / str(number)).touch()
    listed = space.ls("/")
    assert (len(listed["entries"]), listed["truncated"]) == (MAX_FOUND, True)


@pytest.mark.parametrize("pattern", ["}" * 5_000, "*a" * 2_500])
def test_a_glob_is_no_longer_than_a_path(space, pattern):
    with pytest.raises(ValueError, match="more than 4,096 characters"):
        space.glob(pattern, "/")


@pytest.mark.parametrize("pattern", ["(?:a?){1000}(?:a?){1000}b", ".{1,1000}.{1,1000}x"])
def test_an_expression_that_costs_much_for_each_byte_is_refused(space, pattern):
    pytest.importorskip("re2", reason="the extra `search` is not installed")
    with pytest.raises(ConfigError, match="too large: repeat less"):
        space.grep(pattern, **{**GREP, "regex": True})


def test_a_search_that_takes_too_long_is_cut(space, root, monkeypatch):
    (root / "file").write_text("x\n")
    monkeypatch.setattr(blocks, "SECONDS", -1.0)
    assert space.grep("x", **GREP)["truncated"] is True


def test_groups_within_groups_are_told_in_words(space):
    pytest.importorskip("re2", reason="the extra `search` is not installed")
    with pytest.raises(ConfigError, match="not a regular expression"):
        space.grep("(" * 100_000, **{**GREP, "regex": True})


def test_a_time_that_no_float_holds_makes_no_sense():
    with pytest.raises(SandboxError, match="cannot be read"):
        checked("ls", {"entries": [["a", False, 1, 10**400]]})


async def test_many_at_once_are_all_answered_and_leave_no_descriptor(native_box):
    await native_box.files.write("a.txt", "hello")
    before = len(os.listdir("/proc/self/fd"))
    many = [native_box.files.read("a.txt") for _ in range(1_000)]
    async with asyncio.timeout(60):
        assert set(await asyncio.gather(*many)) == {"     1\thello"}
    tasks = [asyncio.create_task(native_box.files.grep("x")) for _ in range(300)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await native_box.files.read("a.txt") == "     1\thello"
    assert len(os.listdir("/proc/self/fd")) <= before + 4 * AT_ONCE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as somebody else")
def test_who_cannot_be_the_owner_does_nothing_as_root(root, monkeypatch):
    os.chown(root, 12345, 12345)
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    kernel = owner._libc
    knows_nobody = SimpleNamespace(
        setfsuid=lambda _: kernel.setfsuid(-1), setfsgid=kernel.setfsgid, syscall=kernel.syscall
    )
    monkeypatch.setattr(owner, "_libc", knows_nobody)
    with pytest.raises(PermissionError), owner.acting_as_owner(fd):
        pass
    os.close(fd)
    assert (kernel.setfsuid(-1), kernel.setfsgid(-1)) == (0, 0)
