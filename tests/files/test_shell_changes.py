"""Files moved, deleted and looked up where only commands can be run: with Python there, and without."""

from __future__ import annotations

import os

import pytest
from shells import KINDS, AsyncBox, Awaited, BlockingBox, Shell, tools

from atoll.errors import SandboxError

pytestmark = pytest.mark.spec("R3.2", "R3.11")
STRANGE = [
    "with 'quotes\"",
    "new\nline",
    "$(touch owned)",
    "-rf",
    " spaces ",
    "*?[a]",
    "a;touch owned",
    "é",
]


@pytest.fixture(params=KINDS)
def shell(request, tmp_path):
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    work.mkdir()
    temporary.mkdir()
    yield Shell(tools(request.param, tmp_path / "bin"), work, temporary)
    assert os.listdir(temporary) == []


@pytest.fixture(params=["async", "blocking"])
def box(request, shell):
    return BlockingBox(shell) if request.param == "blocking" else Awaited(AsyncBox(shell))


@pytest.fixture
def work(shell):
    return shell.cwd


def test_stat_describes_a_file_a_folder_and_a_link(box, work):
    (work / "a").write_text("12345")
    os.utime(work / "a", (1000, 2000))
    (work / "d").mkdir()
    (work / "l").symlink_to("d")
    found = box.stat("a")
    assert (found.path, found.is_dir, found.size) == ("a", False, 5)
    assert found.modified_at == "1970-01-01T00:33:20.000Z"
    assert box.stat(str(work / "d")).is_dir
    assert not box.stat("l").is_dir
    with pytest.raises(FileNotFoundError, match="File 'nope' not found"):
        box.stat("nope")


def test_mkdir_makes_parents(box, work):
    box.mkdir("a/b/c")
    box.mkdir("a/b")
    assert (work / "a/b/c").is_dir()
    (work / "file").touch()
    with pytest.raises(OSError, match="cannot be made"):
        box.mkdir("file")
    with pytest.raises(OSError, match="cannot be made"):
        box.mkdir("file/x")


@pytest.mark.parametrize("name", STRANGE)
def test_delete_takes_files_links_and_folders_if_told_so(box, work, name):
    (work / "d").mkdir()
    (work / "d" / name).touch()
    (work / name).symlink_to("d")
    box.delete(name)
    with pytest.raises(IsADirectoryError, match="recursive=True"):
        box.delete("d")
    assert os.listdir(work / "d") == [name]
    box.delete(f"d/{name}")
    box.delete("d", recursive=True)
    assert os.listdir(work) == []
    with pytest.raises(FileNotFoundError):
        box.delete(name)


@pytest.mark.parametrize("name", STRANGE)
def test_move_renames_and_does_not_overwrite_unless_told_so(box, work, name):
    (work / "a").write_text("a")
    (work / "b").write_text("b")
    box.move("a", f"new/{name}")
    assert (work / "new" / name).read_text() == "a"
    with pytest.raises(FileExistsError, match="overwrite=True"):
        box.move("b", f"new/{name}")
    box.move("b", f"new/{name}", overwrite=True)
    assert (work / "new" / name).read_text() == "b"
    (work / "empty").mkdir()
    (work / "full/x").mkdir(parents=True)
    with pytest.raises(OSError, match="cannot be moved"):
        box.move("new", "full", overwrite=True)
    box.move("new", "empty", overwrite=True)
    assert (work / "empty" / name).read_text() == "b"
    with pytest.raises(FileNotFoundError):
        box.move("nope", "x/y")
    assert sorted(os.listdir(work)) == ["empty", "full"]


@pytest.mark.parametrize("path", ["", ".", "/", "x/..", "x/."])
def test_what_has_no_name_stays(box, work, path):
    (work / "x").mkdir()
    with pytest.raises(OSError, match="deleted"):
        box.delete(path, recursive=True)
    with pytest.raises(OSError, match="moved"):
        box.move(path, "y")
    assert os.listdir(work) == ["x"]


def test_a_shell_that_answers_nonsense_is_an_error(shell):
    class Liar(BlockingBox):
        def execute(self, command):
            response = super().execute(command)
            return (
                response if "probe" in command else type(response)(output="nonsense", exit_code=0)
            )

    with pytest.raises(SandboxError):
        Liar(shell).stat("x")
