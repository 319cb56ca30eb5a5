"""Wrong arguments are told before anything is touched, in words that say what is right."""

from __future__ import annotations

from pathlib import Path

import pytest

import atoll


@pytest.fixture
def box(tmp_path):
    with atoll.LocalSandbox(tmp_path) as box:
        yield box


@pytest.mark.spec("R3.8")
def test_a_glob_that_is_no_text_is_refused(box):
    with pytest.raises(atoll.ConfigError, match=r"^glob must be a str, not int$"):
        box.grep("x", glob=3)


@pytest.mark.spec("R3.11")
@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            [("a", "text")],
            "uploaded to 'a' must be bytes, not str: pass the read_bytes() of a path",
        ),
        ([("a", 5)], "uploaded to 'a' must be bytes, not int"),
        (("a", b"1"), "upload takes a list of pairs (path, bytes), not of 'a'"),
        ({"a": "text"}, "uploaded to 'a' must be bytes, not str"),
        ([(1, b"1")], "path must be a str or a pathlib path, not int"),
    ],
)
def test_what_is_no_list_of_pairs_is_not_uploaded(box, tmp_path, files, message):
    with pytest.raises(atoll.ConfigError) as caught:
        box.upload(files)
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_dict_of_files_is_uploaded(box, tmp_path):
    assert [one.error for one in box.upload({"a": b"1", Path("b"): b"2"})] == [None, None]
    assert [(tmp_path / name).read_bytes() for name in "ab"] == [b"1", b"2"]


@pytest.mark.spec("R3.6")
def test_bytes_that_are_written_as_text_are_sent_to_upload(box):
    with pytest.raises(
        atoll.ConfigError, match=r"to write bytes, use upload\(\[\(path, data\)\]\)$"
    ):
        box.write("a", b"1")


@pytest.mark.spec("R3.11")
def test_one_path_is_not_downloaded_letter_by_letter(box):
    with pytest.raises(atoll.ConfigError, match=r"^download takes a list of paths: \['a.txt'\]$"):
        box.download("a.txt")
    with pytest.raises(atoll.ConfigError, match=r"^download takes a list of paths: \[PosixPath"):
        box.download(Path("a.txt"))


@pytest.mark.spec("R3.2")
def test_an_async_execute_in_a_blocking_sandbox_is_told():
    class Mixed(atoll.ShellSandbox):
        id = "mixed"

        async def execute(self, command):
            raise AssertionError(command)

    with pytest.raises(atoll.ConfigError, match=r"derive from atoll\.aio\.ShellSandbox"):
        Mixed().ls()


@pytest.mark.spec("R3.2")
@pytest.mark.parametrize("answer", ["text", None, atoll.ExecuteResponse(output=b"", exit_code=0)])
def test_an_execute_that_gives_something_else_is_told(answer):
    class Wrong(atoll.ShellSandbox):
        id = "wrong"

        def execute(self, command):
            assert command
            return answer

    with pytest.raises(atoll.SandboxError, match="must be an ExecuteResponse"):
        Wrong().ls()
