"""Files moved, deleted and looked up from outside, and folders made: alike in every backend."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

import atoll
from atoll import Capability

pytestmark = [pytest.mark.needs(Capability.WORKSPACE), pytest.mark.spec("R3.11")]


def names(box, path="."):
    return [one.path for one in box.files.ls(path)]


def test_stat_describes_a_file_a_folder_and_a_link(box):
    box.execute("import os\nopen('a', 'w').write('12345'); os.mkdir('d'); os.symlink('d', 'l')")
    found = box.files.stat("a")
    assert (found.path, found.is_dir, found.size) == ("a", False, 5)
    assert found.modified_at > "2020"
    assert box.files.stat("/app/d").is_dir
    assert box.files.stat(".").is_dir
    assert not box.files.stat("l").is_dir
    with pytest.raises(FileNotFoundError, match="File 'nope' not found"):
        box.files.stat("nope")


def test_mkdir_makes_parents_and_accepts_a_folder_that_is_there(box):
    box.files.mkdir("a/b/c")
    box.files.mkdir("/app/a/b")
    assert (
        box.execute("import os\nopen('a/b/c/x', 'w').close(); os.path.isdir('a/b/c')").value is True
    )
    with pytest.raises(OSError, match="cannot be made"):
        box.files.mkdir("a/b/c/x")
    with pytest.raises(OSError, match="cannot be made"):
        box.files.mkdir("a/b/c/x/y")


def test_delete_takes_files_and_links_and_folders_if_told_so(box):
    box.execute(
        "import os\nos.makedirs('d/e'); open('d/e/f', 'w').close(); open('a', 'w').close()\n"
        "os.symlink('d', 'link'); os.symlink('nowhere', 'dangling')"
    )
    box.files.delete("a")
    box.files.delete("link")
    box.files.delete("dangling")
    assert names(box) == ["d"]
    with pytest.raises(IsADirectoryError, match="recursive=True"):
        box.files.delete("d")
    assert names(box, "d/e") == ["f"]
    box.files.delete("d", recursive=True)
    assert names(box) == []
    with pytest.raises(FileNotFoundError):
        box.files.delete("d", recursive=True)


def test_move_renames_and_does_not_overwrite_unless_told_so(box):
    box.files.upload([("a", b"a"), ("b", b"b"), ("full/x", b"x")])
    box.files.move("a", "new/folder/c")
    assert box.files.download(["new/folder/c"])[0].content == b"a"
    with pytest.raises(FileExistsError, match="overwrite=True"):
        box.files.move("b", "new/folder/c")
    box.files.move("b", "/app/new/folder/c", overwrite=True)
    assert box.files.download(["new/folder/c"])[0].content == b"b"
    assert names(box) == ["full", "new"]
    with pytest.raises(OSError, match="cannot be moved"):
        box.files.move("new", "full", overwrite=True)
    with pytest.raises(OSError, match="cannot be moved"):
        box.files.move("new", "new/inside")
    with pytest.raises(FileNotFoundError):
        box.files.move("nope", "other/place")
    assert names(box) == ["full", "new"]
    box.files.move("new", "old")
    assert names(box, "old/folder") == ["c"]


@pytest.mark.parametrize("path", ["", ".", "/", "/app", "/app/", "x/.."])
def test_the_working_folder_itself_stays(box, path):
    box.files.upload([("x/keep", b"")])
    with pytest.raises(OSError, match="deleted"):
        box.files.delete(path, recursive=True)
    with pytest.raises(OSError, match="moved"):
        box.files.move(path, "elsewhere")
    assert names(box) == ["x"]


def test_every_operation_accepts_a_pathlib_path(box):
    files, folder = box.files, PurePosixPath("d")
    files.mkdir(folder)
    assert files.write(folder / "a", "one\ntwo").path == "d/a"
    assert files.edit(Path("d/a"), "one", "1").occurrences == 1
    assert files.read(folder / "a", 1) == "     2\ttwo"
    assert files.read_raw(folder / "a").content == ["1", "two"]
    assert (files.stat(folder / "a").path, files.ls(folder)[0].path) == ("d/a", "a")
    assert files.grep("two", folder)[0].path == files.glob("*", folder)[0].path == "a"
    files.move(folder / "a", folder / "b")
    (sent,) = files.upload([(folder / "c", b"3")])
    b, c = files.download([folder / "b", folder / "c"])
    assert (sent.path, b.content, c.path, c.content) == ("d/c", b"1\ntwo", "d/c", b"3")
    files.delete(folder, recursive=True)
    with pytest.raises(FileNotFoundError, match="File 'd/b' not found"):
        files.read_raw(folder / "b")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../x", "the path is outside the working folder"),
        ("file/x", "a part of the path is a file, not a folder"),
        ("out/x", "a symbolic link in the path leads outside the working folder"),
        ("\0", "the path contains a zero byte"),
    ],
)
def test_an_error_says_what_is_wrong_with_the_path(box, path, reason):
    made = box.execute("import os\nopen('file', 'w').close(); os.symlink('/var', 'out')")
    if path == "out/x" and (not made.success or box.backend != "native"):
        pytest.skip("no link leads out, or the guest's own kernel resolves it")
    error = box.files.write(path, "").error
    assert error == f"Error: File '{path}' cannot be written: {reason}"


@pytest.mark.parametrize("path", ["../x", "a/../../x", "\0"])
def test_a_path_that_cannot_be_is_an_error(box, path):
    for attempt in (
        lambda: box.files.stat(path),
        lambda: box.files.delete(path),
        lambda: box.files.mkdir(path),
        lambda: box.files.move(path, "y"),
        lambda: box.files.move("y", path),
    ):
        with pytest.raises(OSError):
            attempt()


def test_wrong_arguments_are_config_errors(box):
    for attempt in (
        lambda: box.files.stat(5),
        lambda: box.files.delete(None),
        lambda: box.files.move("a", 5),
    ):
        with pytest.raises(atoll.ConfigError, match="must be a str"):
            attempt()


def test_what_is_changed_from_outside_is_not_the_next_cells_doing(box):
    box.files.upload([("a", b"1"), ("b", b"2")])
    box.files.move("a", "c")
    box.files.delete("b")
    box.files.mkdir("d")
    result = box.execute("open('e', 'w').close()")
    assert result.files == ("e",)


@pytest.mark.needs(Capability.WORKSPACE, Capability.FORK)
def test_the_first_cell_after_a_fork_or_rollback_reports_only_what_it_changed_itself(box):
    box.files.upload([("uploaded", b"1")])
    box.execute("for name in 'abc': open(name, 'w').write(name)")
    mark = box.checkpoint()
    twin = box.fork()
    try:
        in_clone = twin.execute("open('new', 'w').close(); open('a', 'a').write('x')")
        in_origin = box.execute("open('new', 'w').close(); open('b', 'a').write('x')")
        box.rollback(mark)
        after_rollback = box.execute("open('new', 'w').close(); open('c', 'a').write('x')")
        unchanged = twin.fork()
        try:
            nothing = unchanged.execute("1")
        finally:
            unchanged.destroy()
    finally:
        twin.destroy()
    assert (in_clone.files_created, in_clone.files_modified) == (("new",), ("a",))
    assert (in_origin.files_created, in_origin.files_modified) == (("new",), ("b",))
    assert (after_rollback.files_created, after_rollback.files_modified) == (("new",), ("c",))
    assert nothing.artifacts == ()
