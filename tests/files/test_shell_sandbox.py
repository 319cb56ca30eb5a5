"""A sandbox that can only run commands is a workspace: with Python in it, and without."""

from __future__ import annotations

import os
import re

import pytest
from shells import KINDS, AsyncBox, Awaited, BlockingBox, Shell, tools

import atoll
from atoll.errors import SandboxError
from atoll.guest.shared.workspace import EMPTY

STRANGE = [
    "with 'quotes\"", "new\nline", "ends in one\n", "\n", "$(touch owned)", "`touch owned`", "-rf", "--",
    " spaces ", "*?[a]", "back\\slash", "\\n", "a;touch owned", "&|<>", "\udcff\udcfe", "é\u2028", "%s%n", "!x", "~", "=",
    "#", "\r\n", "\t", "x//y",
]  # fmt: skip


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


def paths(found):
    return [one.path for one in found]


@pytest.mark.spec("R3.2", "R3.3")
def test_ls_tells_name_kind_size_and_time(box, work):
    (work / "sub").mkdir()
    (work / "sub/inner").touch()
    (work / ".hidden").write_text("12345")
    os.utime(work / ".hidden", (1000, 2000))
    (work / "link").symlink_to("sub")
    hidden, link, sub = box.ls(".")
    assert (hidden.path, hidden.is_dir, hidden.size) == (".hidden", False, 5)
    assert hidden.modified_at == "1970-01-01T00:33:20.000Z"
    assert (link.path, link.is_dir) == ("link", False)
    assert (sub.path, sub.is_dir) == ("sub", True)
    assert paths(box.ls(str(work / "link"))) == ["inner"]


@pytest.mark.spec("R3.3")
@pytest.mark.parametrize("path", ["missing", "a/b", "\0", "x" * 5000, "file", "\ud800"])
def test_ls_of_no_folder_is_empty(box, work, path):
    (work / "file").touch()
    assert box.ls(path) == []


@pytest.mark.spec("R3.2", "R3.4")
def test_read_numbers_lines(box, work):
    (work / "a.txt").write_bytes(b"one\r\ntwo\n\nfour")
    assert box.read("a.txt") == "     1\tone\n     2\ttwo\n     3\t\n     4\tfour"
    assert box.read(str(work / "a.txt"), 1, 1) == "     2\ttwo"
    assert box.read("a.txt", 3, 10**30) == "     4\tfour"


@pytest.mark.spec("R3.4")
def test_read_says_what_is_wrong(box, work):
    (work / "empty").touch()
    (work / "short").write_text("x\n")
    (work / "unended").write_text("x\ny")
    assert box.read("no") == "Error: File 'no' not found"
    assert box.read("empty") == EMPTY
    beyond = "Error: Line offset {} is beyond the end of file '{}' ({} lines)"
    assert box.read("short", 5, 9) == beyond.format(5, "short", 1)
    assert box.read("unended", 2) == beyond.format(2, "unended", 2)
    assert box.read("unended", 10**30) == beyond.format(10**30, "unended", 2)
    assert box.read(".") == "Error: File '.' cannot be read: it is a folder"
    assert "a part of the path is a file, not a folder" in box.read("short/x")


def test_read_shows_what_is_no_utf8_as_such(box, work):
    (work / "a").write_bytes(b"\xff\xfe ok \xc3\xa9")
    assert box.read("a").endswith("\ufffd\ufffd ok é")


@pytest.mark.spec("R3.2", "R3.5")
def test_read_raw_gives_lines_and_times(box, work):
    (work / "weird 'name").write_text("a\nb\n")
    os.utime(work / "weird 'name", (1000, 2000))
    data = box.read_raw("weird 'name")
    assert data.content == ["a", "b", ""]
    assert data.modified_at == "1970-01-01T00:33:20.000Z"
    assert data.created_at > "2020"
    with pytest.raises(FileNotFoundError, match="File 'no' not found"):
        box.read_raw("no")
    with pytest.raises(IsADirectoryError):
        box.read_raw(".")


@pytest.mark.spec("R3.2", "R3.6")
def test_write_makes_folders_and_refuses_what_is_there(box, work):
    assert box.write("a/b/c.txt", "é\n") == atoll.WriteResult(path="a/b/c.txt")
    assert (work / "a/b/c.txt").read_text() == "é\n"
    assert (work / "a/b/c.txt").stat().st_mode & 0o777 == 0o644
    again = box.write("a/b/c.txt", "other")
    assert again.error == "Cannot write to a/b/c.txt because it already exists."
    assert (work / "a/b/c.txt").read_text() == "é\n"
    for path in ("a/b/c.txt/d", "a/b/c.txt/d/e"):
        text = f"Error: File '{path}' cannot be written: a part of the path is a file, not a folder"
        assert box.write(path, "x").error == text
    for path in ("", ".", "a", "a/", "new/"):
        assert box.write(path, "x").error
    (work / "dangling").symlink_to("nowhere")
    assert "already exists" in box.write("dangling", "x").error
    assert not (work / "nowhere").exists()
    assert box.write("empty", "").path == "empty"
    assert (work / "empty").read_bytes() == b""


@pytest.mark.spec("R3.2", "R3.7")
def test_edit_replaces_exactly_and_literally(box, work):
    (work / "a").write_text("foo bar baz\nbar")
    assert box.edit("a", "bar", "x").error == (
        "Error: String 'bar' appears multiple times. Use replace_all=True to replace all occurrences."
    )
    assert box.edit("a", "foo bar", r"\1 $& {}").occurrences == 1
    assert (work / "a").read_text() == "\\1 $& {} baz\nbar"
    (work / "b").write_text("bar bar")
    assert box.edit("b", "bar", "x", replace_all=True).occurrences == 2
    assert box.edit("b", "bar", "x").error == "Error: String not found in file: 'bar'"
    assert box.edit("no", "a", "b").error == "Error: File 'no' not found"
    assert "is empty" in box.edit("b", "", "b").error
    assert (work / "b").read_text() == "x x"


@pytest.mark.spec("R3.7")
def test_edit_keeps_bytes_line_ends_and_mode(box, work):
    path = work / "a.sh"
    path.write_bytes(b"\xff one\r\ntwo\r\nthree")
    path.chmod(0o755)
    assert box.edit("a.sh", "one\ntwo", "1\n2").occurrences == 1
    assert path.read_bytes() == b"\xff 1\r\n2\r\nthree"
    assert path.stat().st_mode & 0o777 == 0o755
    assert os.listdir(work) == ["a.sh"]


def test_edit_does_not_replace_a_link_by_a_file(box, work):
    (work / "a").write_text("x")
    (work / "link").symlink_to("a")
    assert "is a link" in box.edit("link", "x", "y").error
    assert (work / "a").read_text() == "x"


@pytest.mark.spec("R3.2", "R3.8")
def test_grep_finds_literal_text_with_path_line_and_text(box, work):
    (work / "b").mkdir()
    (work / "b/x.py").write_text("no\n  a.b*c()\r\n")
    (work / "a.txt").write_text("a.b*c")
    (work / "axbbc").write_text("axbbc")
    (work / "binary").write_bytes(b"\0a.b*c")
    (work / "b/new\nline").write_text("a.b*c\n")
    hits = box.grep("a.b*c", ".")
    assert [(hit.path, hit.line, hit.text) for hit in hits] == [
        ("a.txt", 1, "a.b*c"), ("b/new\nline", 1, "a.b*c"), ("b/x.py", 2, "  a.b*c()"),
    ]  # fmt: skip
    assert box.grep("a.b*c", ".", "*.py") == hits[2:]
    assert box.grep("a.b*c", ".", "b/*") == hits[1:]
    assert [(hit.path, hit.line) for hit in box.grep("a.b*c", "b/x.py")] == [("x.py", 2)]
    assert paths(box.grep("a.b*c", str(work / "b"))) == ["new\nline", "x.py"]
    assert box.grep("a.b*c", "missing") == []


def test_grep_with_a_regular_expression_or_without_case(box, work):
    (work / "a").write_text("Alpha 1\nbeta 22\ngamma\n")
    assert [hit.line for hit in box.grep("^[a-zA-Z]+ [0-9]+$", ".", regex=True)] == [1, 2]
    assert [hit.text for hit in box.grep("ALPHA", ".", ignore_case=True)] == ["Alpha 1"]
    assert [hit.line for hit in box.grep("^B|^G", ".", regex=True, ignore_case=True)] == [2, 3]
    with pytest.raises(atoll.ConfigError, match="not a regular expression"):
        box.grep("(", ".", regex=True)
    with pytest.raises(atoll.ConfigError, match="the pattern is empty"):
        box.grep("", ".")


def test_grep_refuses_text_of_several_lines(box):
    with pytest.raises(atoll.ConfigError, match="search for one of its lines"):
        box.grep("one\ntwo", ".")


def test_grep_says_when_it_was_cut(box, work):
    for name in "ab":
        (work / name).write_text("x\n" * 10)
    found = box.grep("x", ".", max_results=20)
    assert (len(found), found.truncated) == (20, False)
    found = box.grep("x", ".", max_results=19)
    assert (len(found), found.truncated) == (19, True)
    assert box.grep("x", ".", max_results=0).truncated


def test_grep_shows_long_lines_cut(box, work):
    (work / "a").write_text("é" * 5000 + "\n" + "y" * 1999 + "é\n")
    assert box.grep("é", ".", max_results=1)[0].text == "é" * 2000 + "…"
    assert box.grep("yé", ".")[0].text == "y" * 1999 + "é"


@pytest.mark.spec("R3.2", "R3.9")
def test_glob_is_sorted_with_dot_files(box, work):
    for name in ("b.py", "a.py", ".c.py", "sub/d.py", "sub/deep/e.py", "f.txt", "sub-x/g.py"):
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("123")
    found = box.glob("*.py", ".")
    assert paths(found) == [".c.py", "a.py", "b.py"]
    assert [one.size for one in found] == [3, 3, 3]
    assert paths(box.glob("**/*.py", ".")) == [
        ".c.py", "a.py", "b.py", "sub-x/g.py", "sub/d.py", "sub/deep/e.py",
    ]  # fmt: skip
    assert paths(box.glob("sub/**", ".")) == ["sub/d.py", "sub/deep", "sub/deep/e.py"]
    assert paths(box.glob("{a,f}.*", str(work))) == ["a.py", "f.txt"]
    assert paths(box.glob("*.py", "sub")) == ["d.py"]
    assert paths(box.glob("*", "a.py")) == ["a.py"]
    assert box.glob("*", "missing") == []


def test_folders_of_any_depth_do_not_break_a_walk(box, work):
    os.chdir(work)
    for _ in range(300):
        os.mkdir("d")
        os.chdir("d")
    os.chdir("/")
    assert box.glob("**", ".").truncated
    assert box.grep("x", ".").truncated


@pytest.mark.spec("R3.2")
@pytest.mark.parametrize("name", STRANGE)
def test_no_name_or_content_breaks_out_of_a_command(box, work, name):
    content = f"{name}\n'{name}\" $(touch owned) `touch owned`"
    assert box.write(f"d/{name}", content).error is None
    assert (
        box.write(f"d/{name}", content).error
        == f"Cannot write to d/{name} because it already exists."
    )
    raw = content.encode("utf-8", "surrogateescape")
    where = os.path.normpath(name)
    assert (work / "d" / where).read_bytes() == raw
    assert box.download([f"d/{name}"])[0].content == raw
    assert box.read_raw(f"d/{name}").content == raw.decode("utf-8", "replace").split("\n")
    assert box.edit(f"d/{name}", content, name).occurrences == 1
    line = max(name.split("\n"), key=len) or "touch"
    assert [hit.path for hit in box.grep(line, "d")] == ([where] if line in name else [])
    if "/" not in name:
        assert paths(box.ls("d")) == [name]
    assert where in paths(box.glob("**", "d"))
    (work / "d" / where).unlink()
    assert box.grep(line, f"d/{name}") == []
    assert sorted(os.listdir(work)) == ["d"]


def test_upload_and_download_of_any_bytes(box, work):
    data = bytes(range(256)) * 1000
    sent = box.upload([("new/é 'x\n", data), ("new", b""), ("x" * 300, b""), ("a\0b", b"")])
    assert [one.error for one in sent] == [None, "is_directory", "invalid_path", "invalid_path"]
    got = box.download(["new/é 'x\n", "new", "no", "a\0b", "x" * 300])
    assert got[0].content == data
    assert [one.error for one in got] == [
        None, "is_directory", "file_not_found", "invalid_path", "invalid_path",
    ]  # fmt: skip
    assert box.upload([("new/é 'x\n", b"")])[0].error is None
    assert box.download(["new/é 'x\n"])[0].content == b""
    assert os.listdir(work) == ["new"]
    assert os.listdir(work / "new") == ["é 'x\n"]


def test_upload_replaces_a_link_and_keeps_a_mode(box, work):
    (work / "a").write_text("a")
    (work / "a").chmod(0o700)
    (work / "link").symlink_to("a")
    (work / "folder").mkdir()
    (work / "other").symlink_to("folder")
    sent = box.upload([("link", b"new"), ("other", b"new"), ("a", b"A")])
    assert [one.error for one in sent] == [None, None, None]
    for name in ("link", "other"):
        assert (work / name).read_text() == "new"
        assert not (work / name).is_symlink()
    assert os.listdir(work / "folder") == []
    assert ((work / "a").read_text(), (work / "a").stat().st_mode & 0o777) == ("A", 0o700)


def test_names_as_long_as_can_be(box, work):
    name = "n" * 255
    assert box.upload([(name, b"1")])[0].error is None
    assert box.edit(name, "1", "2").occurrences == 1
    assert (work / name).read_text() == "2"


@pytest.mark.long
def test_large_files_go_up_and_come_down_in_pieces(box, shell, work):
    data = os.urandom(3_000_000)
    assert box.upload([("big", data)])[0].error is None
    assert (work / "big").read_bytes() == data
    assert box.download(["big"])[0].content == data
    text = "é1234567\n" * 100_000
    assert box.write("text", text).error is None
    assert (work / "text").read_text() == text
    assert box.edit("text", text, "short").occurrences == 1
    assert (work / "text").read_text() == "short"
    missing = box.edit("text", text, "x").error
    assert missing == f"Error: String not found in file: '{text}'"


def test_output_that_is_cut_is_asked_for_in_smaller_pieces(box, shell, work):
    data = os.urandom(100_000)
    (work / "big").write_bytes(data)
    shell.most = 5000
    assert box.download(["big"])[0].content == data
    assert box.write("new", "x" * 100_000).error is None
    again = box.edit("new", "y" * 10_000, "z").error
    assert again == f"Error: String not found in file: '{'y' * 10_000}'"


def test_a_sandbox_that_lets_nothing_through_is_an_error(box, shell):
    shell.most = 10
    with pytest.raises(atoll.SandboxError, match="runs no shell commands"):
        box.read("a")
    shell.most = None
    box.read("a")
    shell.most = 10
    with pytest.raises(atoll.SandboxError, match="gave no answer"):
        box.read("a")


def test_noise_does_no_harm(box, shell, work):
    shell.noise = "echo welcome; echo warning >&2; set -x; cd /; cd - >&2; "
    (work / "a").write_text("text\n")
    assert box.read("a") == "     1\ttext"
    assert box.edit("a", "text", "new").occurrences == 1
    assert paths(box.ls(".")) == ["a"]
    assert [hit.text for hit in box.grep("new", ".")] == ["new"]


def test_modules_of_the_working_folder_are_not_imported(box, work):
    for name in ("json", "zlib", "base64", "stat", "errno", "re"):
        (work / f"{name}.py").write_text("raise SystemExit('owned')")
    assert len(box.ls(".")) == 6


def test_what_is_no_file_is_not_read(box, work):
    os.mkfifo(work / "fifo")
    assert box.download(["fifo"])[0].error == "invalid_path"
    assert "Error" in box.read("fifo")
    assert box.grep("x", ".") == []


def test_sparse_files_are_not_read_whole(box, work):
    with open(work / "sparse", "wb") as file:
        file.truncate(1 << 40)
    assert box.download(["sparse"])[0].error == "too_large"
    assert box.grep("x", ".") == []
    assert box.ls(".")[0].size == 1 << 40


def test_the_sandbox_is_asked_once_what_it_has(box, shell):
    box.read("a")
    first = shell.commands
    box.read("a")
    assert (first, shell.commands) == (2, 3)


@pytest.mark.parametrize(
    ("left", "message"),
    [
        ({"sh"}, "neither python3 nor base64: install one of them there"),
        ({"sh", "base64", "cat", "grep"}, "no python3, and no chmod, cut, find, head, mkdir, mv"),
    ],
)
def test_a_shell_without_tools_says_what_is_missing(tmp_path, left, message):
    shell = Shell(tools("dash", tmp_path / "bin"), tmp_path, tmp_path)
    for path in shell.path.iterdir():
        if path.name not in left:
            path.unlink()
    with pytest.raises(atoll.SandboxError, match=message):
        BlockingBox(shell).read("a")


def test_python_alone_will_do_where_there_is_no_base64(tmp_path):
    shell = Shell(tools("python", tmp_path / "bin"), tmp_path, tmp_path)
    (shell.path / "base64").unlink()
    data = os.urandom(200_000)
    assert BlockingBox(shell).upload([("a", data)])[0].error is None
    assert BlockingBox(shell).download(["a"])[0].content == data


@pytest.mark.spec("R3.2")
def test_a_shell_sandbox_is_a_sandbox_backend(box):
    inner = box._box if isinstance(box, Awaited) else box
    assert isinstance(inner, atoll.SandboxBackendProtocol)
    assert box.id in ("async", "blocking")


def test_only_execute_and_id_are_needed():
    with pytest.raises(TypeError, match="abstract"):
        atoll.ShellSandbox()
    with pytest.raises(TypeError, match="abstract"):
        atoll.aio.ShellSandbox()


ANSWERS = {
    "nothing": "",
    "no number": "MARK x\nMARK.",
    "no base64": "MARK 3\n~~~\nMARK.",
    "another size": "MARK 9\nYWJj\nMARK.",
    "nonsense": "MARK 3\nYWJj\nMARK.",
    "endless": f"MARK {10**14}\nMARK.",
    "JSON of another shape": "MARK 13\neJyLjgUAARUAuQ==\nMARK.",
}


class Liar(atoll.ShellSandbox):
    """Says that it has what is asked for, and then anything."""

    id = "liar"

    def __init__(self, kind: str, answer: str) -> None:
        self.kind, self.answer, self.commands = kind, answer, 0

    def execute(self, command: str) -> atoll.ExecuteResponse:
        self.commands += 1
        mark = re.findall(r"\b[0-9a-f]{32}\b", command)[0]
        kind = f"{mark} {self.kind}." if self.commands == 1 else ""
        return atoll.ExecuteResponse(output=kind or self.answer.replace("MARK", mark))


@pytest.mark.parametrize("kind", ["python", "sh"])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("operation", ["ls", "glob", "grep", "read_raw", "write", "edit"])
def test_answers_that_make_no_sense_are_errors_or_failures(kind, answer, operation):
    box = Liar(kind, answer)
    arguments = {
        "edit": ["a", "b", "c"],
        "write": ["a", "b"],
        "grep": ["x", "a"],
        "glob": ["*", "a"],
    }
    try:
        result = getattr(box, operation)(*arguments.get(operation, ["a"]))
    except (atoll.SandboxError, OSError, atoll.ConfigError):
        result = None
    assert not result or result.error
    assert box.commands < 100


class Stranger(atoll.ShellSandbox):
    """Gives whatever it was made to."""

    id = "stranger"

    def __init__(self, answer):
        super().__init__()
        self._answer, self.asked = answer, 0

    def execute(self, command):
        self.asked += 1
        return self._answer(command)


def _mark(command):
    """What stands around answers: a stranger sees it."""
    return re.findall(r"\b[0-9a-f]{32}\b", command)[0]


@pytest.mark.spec("R3.2")
@pytest.mark.parametrize("answer", [None, "text", b"bytes", {"output": "x"}, 7])
def test_what_is_no_response_is_an_error_in_words(answer):
    with pytest.raises(SandboxError, match=r"must be an ExecuteResponse"):
        Stranger(lambda _: answer).ls()


@pytest.mark.spec("R3.2")
@pytest.mark.parametrize("truncated", [True, False])
def test_an_answer_that_begins_again_and_again_ends_in_bounded_time(truncated):
    def answer(command):
        mark = _mark(command)
        text = f"{mark} python." if "python3 -" in command and len(command) < 2_000 else ""
        text = text or f"{mark} python.\n" + f"{mark} 1 " * 200_000
        return atoll.ExecuteResponse(output=text, exit_code=None, truncated=truncated)

    stranger = Stranger(answer)
    with pytest.raises(SandboxError, match=r"no answer|cannot be read"):
        stranger.read("x")
    assert stranger.asked < 20
