"""Files of a hostile guest, used by the host: nothing else is reached, held up, or used up."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest

from atoll.files.folder import FolderPlace
from atoll.files.searcher import Searcher
from atoll.guest.workspace import Workspace

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
    yield Workspace(FolderPlace({"/app": fd}), Searcher())
    os.close(fd)


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
