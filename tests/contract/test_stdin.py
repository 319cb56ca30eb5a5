"""Standard input and arguments of guest code, on every backend."""

from __future__ import annotations

import pytest

from atoll import Capability, ConfigError, SandboxConfig

pytestmark = pytest.mark.needs(Capability.BRIDGE)


def pieces(*parts: bytes):
    """Return a handler that gives one part after the other, and what sizes it was asked for."""
    left, sizes = list(parts), []

    def read(size: int) -> bytes:
        sizes.append(size)
        return left.pop(0) if left else b""

    return read, sizes


def test_stdin_comes_in_pieces_and_lines_are_whole(open_box):
    read, sizes = pieces(b"one\ntw", b"o\nthr", "eé\n".encode(), b"rest")
    box = open_box(on_stdin=read)
    assert box.execute("import sys\nprint([sys.stdin.readline()])").stdout == "['one\\n']\n"
    assert len(sizes) == 1, "no more is read than a line needs"
    code = "import sys\nprint(list(sys.stdin))\nprint([sys.stdin.read()])"
    assert box.execute(code).stdout == "['two\\n', 'threé\\n', 'rest']\n['']\n"
    assert max(sizes) <= 1 << 16


def test_without_a_handler_stdin_is_empty(open_box):
    assert open_box().execute("import sys\nprint([sys.stdin.read()])").stdout == "['']\n"


def test_a_failing_handler_is_an_exception_in_the_guest(open_box):
    def read(size: int) -> bytes:
        raise OSError("the pipe burst")

    box = open_box(on_stdin=read)
    code = "import sys\ntry: sys.stdin.read()\nexcept Exception as exc: print(exc)"
    assert "the pipe burst" in box.execute(code).stdout


def test_a_handler_that_sends_too_much_or_no_bytes_is_an_exception(open_box):
    box = open_box(on_stdin=lambda size: b"x" * (size + 1))
    code = "import sys\ntry: sys.stdin.read()\nexcept OSError as exc: print('refused')"
    assert box.execute(code).stdout == "refused\n"
    assert open_box(on_stdin=lambda size: "text").execute(code).stdout == "refused\n"


def test_a_guest_cannot_ask_for_more_than_a_piece(open_box):
    read, sizes = pieces(b"x")
    box = open_box(on_stdin=read)
    box.execute("call_host('<stdin>', 10**12)")
    assert sizes == [1 << 20]
    for bad in ("-1", "0", "'x'", "1, 2", "True", "None"):
        code = f"try: call_host('<stdin>', {bad})\nexcept HostCallError as exc: print('refused')"
        assert box.execute(code).stdout == "refused\n"
    assert sizes == [1 << 20]


def test_arguments_are_sys_argv(open_box):
    box = open_box(argv=["script.py", "a b", "é"])
    assert box.execute("import sys\nprint(sys.argv)").stdout == "['script.py', 'a b', 'é']\n"


def test_arguments_that_are_not_a_list_of_str_are_refused():
    for bad in ("text", [1], [b"x"]):
        with pytest.raises(ConfigError, match="argv must be a list of str"):
            SandboxConfig(argv=bad)
