"""The operations, in a place of plain paths and in one behind the boundary: both do the same."""

from __future__ import annotations

import os
import subprocess
import tracemalloc

import pytest

from atoll.files.folder import OpenFolders
from atoll.files.searcher import Searcher
from atoll.guest.shared.local_files import LocalFiles
from atoll.guest.shared.workspace import EMPTY, MAX_FOUND, Workspace

GREP = {"path": "/", "glob": None, "regex": False, "ignore_case": False, "max_results": 100}


@pytest.fixture(params=["plain", "boundary"])
def space(request, tmp_path):
    if request.param == "plain":
        yield Workspace(LocalFiles(str(tmp_path)))
        return
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield Workspace(OpenFolders({"/app": fd}), Searcher())
    os.close(fd)


def names(answer):
    return [entry[0] for entry in answer["entries"]]


@pytest.mark.spec("R3.3")
def test_ls_tells_name_kind_size_and_time(space, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").write_text("12345")
    os.utime(tmp_path / ".hidden", (1000, 2000))
    hidden, sub = space.ls("/")["entries"]
    assert hidden == [".hidden", False, 5, 2000.0]
    assert sub[:2] == ["sub", True]


@pytest.mark.spec("R3.3")
@pytest.mark.parametrize("path", ["/missing", "a/b", "\0", "x" * 5000, "../.."])
def test_ls_of_no_folder_is_empty(space, path):
    assert space.ls(path) == {"entries": [], "truncated": False}


@pytest.mark.spec("R3.4")
def test_read_numbers_lines(space, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\n\nfour")
    assert space.read("a.txt", 0, 2000) == {
        "text": "     1\tone\n     2\ttwo\n     3\t\n     4\tfour"
    }
    assert space.read("/a.txt", 1, 1) == {"text": "     2\ttwo"}


@pytest.mark.spec("R3.4")
def test_read_says_what_is_wrong(space, tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_text("x\n")
    assert space.read("no", 0, 9) == {
        "text": "Error: File 'no' not found",
        "code": "file_not_found",
    }
    assert space.read("empty", 0, 9) == {"text": EMPTY}
    assert "1 lines" in space.read("short", 5, 9)["text"]
    assert "it is a folder" in space.read("/", 0, 9)["text"]


def test_read_shows_what_is_no_utf8_as_such(space, tmp_path):
    (tmp_path / "a").write_bytes(b"\xff\xfe ok \xc3\xa9")
    assert space.read("a", 0, 9)["text"].endswith("\ufffd\ufffd ok é")


@pytest.mark.spec("R3.5")
def test_read_raw_gives_lines_and_times(space, tmp_path):
    (tmp_path / "weird 'name").write_text("a\nb\n")
    os.utime(tmp_path / "weird 'name", (1000, 2000))
    answer = space.read_raw("weird 'name")
    assert answer["content"] == ["a", "b", ""]
    assert answer["modified"] == 2000.0
    assert space.read_raw("no")["error"] == "file_not_found"


@pytest.mark.spec("R3.6")
def test_write_makes_folders_and_refuses_what_is_there(space, tmp_path):
    assert space.write("/a/b/c.txt", "é\n") == {"path": "/a/b/c.txt"}
    assert (tmp_path / "a/b/c.txt").read_text() == "é\n"
    again = space.write("/a/b/c.txt", "other")
    assert again == {
        "error": "Cannot write to /a/b/c.txt because it already exists.",
        "code": "file_exists",
    }
    assert (tmp_path / "a/b/c.txt").read_text() == "é\n"
    for path in ("a/b/c.txt/d", "a/b/c.txt/d/e"):
        assert "a part of the path is a file, not a folder" in space.write(path, "x")["error"]
    assert "error" in space.write("", "x")


@pytest.mark.spec("R3.7")
def test_edit_replaces_exactly_and_literally(space, tmp_path):
    (tmp_path / "a").write_text("foo bar baz\nbar")
    assert "appears multiple times" in space.edit("a", "bar", "x", replace_all=False)["error"]
    assert space.edit("a", "foo bar", r"\1 $& {}", replace_all=False)["occurrences"] == 1
    assert (tmp_path / "a").read_text() == "\\1 $& {} baz\nbar"
    (tmp_path / "b").write_text("bar bar")
    assert space.edit("b", "bar", "x", replace_all=True)["occurrences"] == 2
    assert space.edit("b", "bar", "x", replace_all=False) == {
        "error": "Error: String not found in file: 'bar'"
    }
    assert space.edit("no", "a", "b", replace_all=False) == {
        "error": "Error: File 'no' not found",
        "code": "file_not_found",
    }
    assert "is empty" in space.edit("b", "", "b", replace_all=False)["error"]


@pytest.mark.spec("R3.7")
def test_edit_keeps_bytes_line_ends_and_mode(space, tmp_path):
    path = tmp_path / "a.sh"
    path.write_bytes(b"\xff one\r\ntwo\r\nthree")
    path.chmod(0o755)
    assert space.edit("a.sh", "one\ntwo", "1\n2", replace_all=False)["occurrences"] == 1
    assert path.read_bytes() == b"\xff 1\r\n2\r\nthree"
    assert path.stat().st_mode & 0o777 == 0o755
    assert os.listdir(tmp_path) == ["a.sh"]


def test_edit_does_not_replace_a_link_by_a_file(space, tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "link").symlink_to("a")
    assert "is a link" in space.edit("link", "x", "y", replace_all=False)["error"]
    assert (tmp_path / "a").read_text() == "x"


@pytest.mark.spec("R3.8")
def test_grep_finds_literal_text_with_path_line_and_text(space, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b/x.py").write_text("no\n  a.b*c()\n")
    (tmp_path / "a.txt").write_text("a.b*c")
    (tmp_path / "axbbc").write_text("axbbc")
    (tmp_path / "binary").write_bytes(b"\0a.b*c")
    hits = space.grep("a.b*c", **GREP)["matches"]
    assert hits == [["a.txt", 1, "a.b*c"], ["b/x.py", 2, "  a.b*c()"]]
    assert space.grep("a.b*c", **{**GREP, "glob": "*.py"})["matches"] == hits[1:]
    assert space.grep("a.b*c", **{**GREP, "path": "b"})["matches"] == [["x.py", 2, "  a.b*c()"]]
    assert space.grep("a.b*c", **{**GREP, "path": "b/x.py"})["matches"][0][:2] == ["x.py", 2]
    assert space.grep("a.b*c", **{**GREP, "path": "missing"})["matches"] == []


def test_grep_with_a_regular_expression_or_without_case(space, tmp_path):
    pytest.importorskip("re2", reason="google-re2 is not installed: pip install 'atoll[search]'")
    (tmp_path / "a").write_text("Alpha 1\nbeta 22\ngamma\n")
    found = space.grep(r"^\w+ \d+$", **{**GREP, "regex": True})["matches"]
    assert [line for _, line, _ in found] == [1, 2]
    assert space.grep("ALPHA", **{**GREP, "ignore_case": True})["matches"] == [["a", 1, "Alpha 1"]]
    with pytest.raises(ValueError, match="regular expression"):
        space.grep("(", **{**GREP, "regex": True})
    with pytest.raises(ValueError, match="empty"):
        space.grep("", **GREP)


def test_grep_says_when_it_was_cut(space, tmp_path):
    (tmp_path / "a").write_text("x\n" * 20)
    answer = space.grep("x", **{**GREP, "max_results": 20})
    assert (len(answer["matches"]), answer["truncated"]) == (20, False)
    answer = space.grep("x", **{**GREP, "max_results": 19})
    assert (len(answer["matches"]), answer["truncated"]) == (19, True)


@pytest.mark.spec("R3.9")
def test_glob_is_sorted_with_dot_files(space, tmp_path):
    for name in ("b.py", "a.py", ".c.py", "sub/d.py", "sub/deep/e.py", "f.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert names(space.glob("*.py", "/")) == [".c.py", "a.py", "b.py"]
    assert names(space.glob("**/*.py", "/")) == [
        ".c.py", "a.py", "b.py", "sub/d.py", "sub/deep/e.py",
    ]  # fmt: skip
    assert names(space.glob("sub/**", "/")) == ["sub/d.py", "sub/deep", "sub/deep/e.py"]
    assert names(space.glob("{a,f}.*", "/")) == ["a.py", "f.txt"]
    assert names(space.glob("*.py", "sub")) == ["d.py"]
    assert names(space.glob("[!a]?py", "/")) == ["b.py"]
    assert names(space.glob("[!a].py", "/")) == ["b.py"]
    assert names(space.glob("*", "missing")) == []


def test_glob_says_when_it_was_cut(space, tmp_path, monkeypatch):
    monkeypatch.setattr("atoll.guest.shared.workspace.MAX_FOUND", 3)
    for number in range(4):
        (tmp_path / str(number)).touch()
    answer = space.glob("*", "/")
    assert (names(answer), answer["truncated"]) == (["0", "1", "2"], True)
    assert MAX_FOUND > 3


def test_folders_of_any_depth_do_not_break_a_walk(space, tmp_path):
    os.chdir(tmp_path)
    for _ in range(300):
        os.mkdir("d" * 10)
        os.chdir("d" * 10)
    os.chdir("/")
    try:
        assert space.glob("**", "/")["truncated"] is True
        assert space.grep("x", **GREP) == {"matches": [], "truncated": True}
    finally:  # too deep for whoever tidies up after tests
        subprocess.run(["rm", "-rf", tmp_path / ("d" * 10)], check=True)


def test_upload_and_download_of_any_bytes(space, tmp_path):
    data = bytes(range(256)) * 1000
    assert space.upload("new/é 'x\n", data) == {}
    assert space.download("new/é 'x\n") == {"data": data}
    assert space.upload("new/é 'x\n", b"") == {}
    assert space.download("new/é 'x\n") == {"data": b""}
    assert space.download("new")["error"] == "is_directory"
    assert space.upload("new", b"")["error"] == "is_directory"
    assert space.download("no")["error"] == "file_not_found"
    assert space.download("a\0b")["error"] == "invalid_path"
    assert space.upload("x" * 300, b"")["error"] == "invalid_path"
    assert os.listdir(tmp_path) == ["new"]


def test_names_as_long_as_can_be(space, tmp_path):
    assert space.upload("n" * 255, b"1") == {}
    assert space.edit("n" * 255, "1", "2", replace_all=False)["occurrences"] == 1
    assert os.listdir(tmp_path) == ["n" * 255]


def test_what_is_no_file_is_not_read(space, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert space.download("fifo")["error"] == "invalid_path"
    assert "Error" in space.read("fifo", 0, 9)["text"]
    assert space.grep("x", **GREP)["matches"] == []


def test_sparse_files_are_not_read_whole(space, tmp_path):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    assert space.download("sparse")["error"] == "too_large"
    assert space.grep("x", **GREP)["matches"] == []
    assert space.ls("/")["entries"][0][2] == 1 << 40


@pytest.mark.spec("R3.4")
def test_a_page_of_many_lines_costs_no_more_than_the_file(space, tmp_path):
    size = 4 << 20
    (tmp_path / "many").write_bytes(b"\n" * size)
    tracemalloc.start()
    try:
        assert space.read("many", size - 1, 10**30) == {"text": f"{size}\t"}
        assert space.read("many", 0, 2) == {"text": "     1\t\n     2\t"}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * size  # a list of the lines alone has 8 bytes for each


@pytest.mark.spec("R3.4")
def test_a_page_of_no_lines_is_no_error(space, tmp_path):
    (tmp_path / "a").write_text("x\n")
    assert space.read("a", 0, 0) == {"text": ""}


@pytest.mark.spec("R3.6")
def test_write_says_what_is_wrong_with_a_text_or_a_name(space):
    assert space.write("a", "\ud800")["error"] == (
        "Error: File 'a' cannot be written: "
        "it has a character that UTF-8 cannot hold, half of a surrogate pair"
    )
    long = "n" * 300
    text = f"Error: File '{long}' cannot be written: its name is too long"
    assert space.write(long, "")["error"] == text
