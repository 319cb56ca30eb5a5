"""Moves and deletes in the folders of a hostile guest: nothing outside is touched."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest

from atoll.files import folder as changes
from atoll.files.folder import OpenFolders
from atoll.guest.shared.workspace import Workspace

pytestmark = pytest.mark.spec("R3.11")
ROUNDS = 500


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "host" / "guest"
    folder.mkdir(parents=True)
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret\n")
    return folder


@pytest.fixture
def space(root):
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    yield Workspace(OpenFolders({"/app": fd}))
    os.close(fd)


@contextlib.contextmanager
def meanwhile(steps, folder):
    """A process of the guest's that does it again and again."""
    lines = "".join(f"    try: {step}\n    except OSError: pass\n" for step in steps)
    program = f"import os\nprint(flush=True)\nwhile True:\n{lines}"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=folder, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def untouched(root):
    outside = root.parent / "outside"
    return (
        sorted(os.listdir(root.parent)) == ["guest", "outside"]
        and os.listdir(outside) == ["file"]
        and (outside / "file").read_text() == "secret\n"
    )


@pytest.mark.parametrize(
    ("operation", "params"),
    [
        ("stat", {}),
        ("delete", {"recursive": False}),
        ("delete", {"recursive": True}),
        ("move", {"target": "mine", "overwrite": True}),
        ("mkdir", {}),
    ],
)
@pytest.mark.parametrize("path", ["link/file", "link/new", "up/outside/file", "/link/../file"])
def test_a_link_that_leads_out_is_refused(space, root, operation, params, path):
    (root / "link").symlink_to("../outside")
    (root / "up").symlink_to("..")
    answer = space.run(operation, {"path": path, **params})
    if path != "/link/../file":  # which the kernel may find in the folder itself
        assert answer["error"] in ("invalid_path", "file_not_found")
    assert untouched(root)


@pytest.mark.parametrize("target", ["link/new", "link/file", "up/new", "up/outside/file"])
def test_nothing_is_moved_out(space, root, target):
    (root / "link").symlink_to("../outside")
    (root / "up").symlink_to("..")
    (root / "mine").write_text("evil")
    answer = space.move("mine", target, overwrite=True)
    assert answer["error"] == "invalid_path"
    assert (root / "mine").read_text() == "evil"
    assert untouched(root)


def test_a_link_is_deleted_moved_and_looked_up_itself(space, root):
    (root / "link").symlink_to("../outside")
    assert space.stat("link")["entry"][1] is False
    assert space.move("link", "moved", overwrite=False) == {}
    assert os.readlink(root / "moved") == "../outside"
    assert space.delete("moved", recursive=True) == {}
    assert os.listdir(root) == []
    assert untouched(root)


def test_a_target_that_is_a_link_is_replaced_not_followed(space, root):
    (root / "link").symlink_to("../outside/file")
    (root / "mine").write_text("mine")
    assert space.move("mine", "link", overwrite=True) == {}
    assert (root / "link").read_text() == "mine"
    assert not (root / "link").is_symlink()
    assert untouched(root)


def test_links_in_a_folder_that_is_deleted_are_not_followed(space, root):
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "e" / "out").symlink_to(root.parent / "outside")
    (root / "d" / "file").symlink_to("../../outside/file")
    os.mkfifo(root / "d" / "fifo")
    assert space.delete("d", recursive=True) == {}
    assert os.listdir(root) == []
    assert untouched(root)


@pytest.mark.parametrize("operation", ["delete", "move"])
def test_a_folder_that_is_swapped_for_a_link_leads_nowhere(space, root, operation):
    (root / "mine").mkdir()
    (root / "link").symlink_to("../outside")
    swap = ["os.mkdir('mine')", "open('mine/file', 'w').close()"]
    swap += ["os.rename('mine', 'sub')", "os.rename('sub', 'mine')"]
    swap += ["os.rename('link', 'sub')", "os.rename('sub', 'link')"]
    params = {"delete": {"path": "sub/file", "recursive": True}}
    params["move"] = {"path": "sub/file", "target": "sub/other", "overwrite": True}
    with meanwhile(swap, root):
        for _ in range(ROUNDS):
            space.run(operation, params[operation])
    assert untouched(root)


def test_a_tree_that_is_swapped_while_it_is_deleted_leads_nowhere(space, root):
    (root / "link").symlink_to("../outside")
    swap = ["os.makedirs('tree/sub')", "open('tree/sub/file', 'w').close()"]
    swap += ["os.rename('tree/sub', 'tree/mine')", "os.rename('link', 'tree/sub')"]
    swap += ["os.rename('tree/sub', 'link')", "os.symlink('../outside', 'link')"]
    with meanwhile(swap, root):
        for _ in range(ROUNDS):
            space.delete("tree", recursive=True)
    assert untouched(root)


def test_a_very_deep_tree_is_deleted_with_few_descriptors(space, root):
    here = os.open(root, os.O_PATH)
    for _ in range(3 * changes.MAX_OPEN + 7):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_PATH, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    assert space.delete("d", recursive=True) == {}
    assert os.listdir(root) == []


def test_a_tree_that_is_cut_into_too_many_pieces_is_given_up(space, root, monkeypatch):
    monkeypatch.setattr(changes, "MAX_OPEN", 1)
    monkeypatch.setattr(changes, "MAX_PIECES", 3)
    (root / "/".join("d" * 20)).mkdir(parents=True)
    answer = space.delete("d", recursive=True)
    assert answer == {
        "error": "io_error",
        "reason": "it grows while it is deleted: stop what writes to it",
    }


def test_a_move_to_another_file_system_says_what_to_do(root, tmp_path):
    fds = {"/app": os.open(root, os.O_PATH), "/shm": os.open("/dev/shm", os.O_PATH)}
    try:
        (root / "a").write_text("x")
        answer = Workspace(OpenFolders(fds)).move("a", "/shm/atoll-moved", overwrite=False)
    finally:
        for fd in fds.values():
            os.close(fd)
    assert answer["error"] == "io_error"
    assert "another file system" in answer["reason"]
    assert not os.path.exists("/dev/shm/atoll-moved")
