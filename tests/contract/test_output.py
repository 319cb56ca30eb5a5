"""What guest code prints and raises, and how much of it comes back."""

from __future__ import annotations

import threading

import pytest

from atoll import Capability, ExecutionPolicy


@pytest.mark.spec("R0.4")
def test_stdout_and_stderr_are_apart(box):
    result = box.execute("import sys; print('out'); print('err', file=sys.stderr)")
    assert (result.stdout, result.stderr) == ("out\n", "err\n")


@pytest.mark.spec("R0.4")
def test_an_exception_is_an_error_with_its_type_and_a_traceback(box):
    result = box.execute("def f():\n    raise ValueError('bad thing')\nf()")
    assert (result.kind, result.success, result.exit_code) == ("error", False, 1)
    assert result.error == "ValueError: bad thing"
    assert result.error_type == "ValueError"
    assert result.stderr.startswith("Traceback (most recent call last):\n")
    assert "raise ValueError('bad thing')" in result.stderr
    assert result.stderr.endswith("ValueError: bad thing\n")
    assert "guest/" not in result.stderr


@pytest.mark.spec("R0.4")
def test_a_syntax_error_is_an_error(box):
    result = box.execute("x = = 1")
    assert result.error_type == "SyntaxError"
    assert "invalid syntax" in result.error
    assert "x = = 1" in result.stderr


@pytest.mark.spec("R0.4")
def test_an_error_does_not_end_the_session(box):
    box.execute("x = 1")
    box.execute("1 / 0")
    assert box.execute("x").value == 1


@pytest.mark.spec("R0.4")
@pytest.mark.parametrize(("code", "exit_code"), [("0", 0), ("3", 3), ("None", 0), ("'why'", 1)])
def test_sys_exit_ends_the_cell_with_its_code(box, code, exit_code):
    result = box.execute(f"x = 1\nimport sys\nsys.exit({code})\nprint('not reached')")
    assert (result.kind, result.exit_code, result.state_lost) == ("exited", exit_code, False)
    assert result.success == (exit_code == 0)
    assert result.stdout == ""
    assert box.execute("x").value == 1


@pytest.mark.spec("R0.7")
def test_output_up_to_the_limit_is_whole(open_box):
    box = open_box(max_output_length=1000)
    result = box.execute("print('x' * 999)")
    assert result.stdout == "x" * 999 + "\n"
    assert not result.truncated


@pytest.mark.spec("R0.7")
def test_longer_output_is_cut_with_a_notice(open_box):
    box = open_box(max_output_length=1000)
    result = box.execute("for n in range(5000): print(n)")
    assert result.truncated
    assert len(result.stdout) <= 1000
    assert result.stdout.startswith("0\n1\n2\n")
    assert result.stdout.endswith("4998\n4999\n")
    assert "of 23,890 bytes left out" in result.stdout


@pytest.mark.spec("R0.7", "R1.12")
@pytest.mark.needs(Capability.LIMIT_OUTPUT)
@pytest.mark.parametrize("letter", ["x", "é", "😀"])
def test_bytes_of_output_are_capped(open_box, letter):
    box = open_box(policy=ExecutionPolicy(stdout_max_bytes=1000, stderr_max_bytes=1000))
    result = box.execute(
        f"import sys; print('{letter}' * 10_000); print('y' * 99, file=sys.stderr)"
    )
    assert result.truncated
    assert len(result.stdout.encode()) <= 1000
    assert "bytes left out" in result.stdout
    assert result.stderr == "y" * 99 + "\n"


@pytest.mark.spec("R0.7")
def test_a_line_of_50_megabytes_is_cut(box):
    result = box.execute("print('x' * 50_000_000)")
    assert result.success
    assert result.truncated
    assert len(result.stdout) <= 1_000_000


@pytest.mark.spec("R0.16")
@pytest.mark.needs(Capability.STREAMING)
def test_lines_arrive_while_the_code_runs(open_box):
    lines, seen = [], threading.Event()

    def on_stdout(line):
        lines.append(line)
        seen.set()

    box = open_box(on_stdout=on_stdout, on_llm_query=lambda prompt: str(seen.wait(10)))
    result = box.execute(
        "print('first'); print(llm_query('has the host seen it?')); print('no end', end='')"
    )
    assert lines == ["first", "True", "no end"]
    assert result.stdout == "first\nTrue\nno end"


@pytest.mark.spec("R0.16")
@pytest.mark.needs(Capability.STREAMING)
def test_stderr_is_streamed_too(open_box):
    lines = []
    box = open_box(on_stderr=lines.append)
    box.execute("import sys; sys.stderr.write('warn 1\\nwarn 2\\n')")
    assert lines == ["warn 1", "warn 2"]


@pytest.mark.spec("R0.16")
@pytest.mark.needs(Capability.STREAMING)
def test_a_failing_callback_is_the_callers_error(open_box):
    def fail(line):
        raise RuntimeError("my callback")

    box = open_box(on_stdout=fail)
    with pytest.raises(RuntimeError, match="my callback"):
        box.execute("print(1)")
    box.execute("x = 2")
    assert box.get_variable("x") == 2


@pytest.mark.spec("R0.16")
@pytest.mark.needs(Capability.STREAMING)
def test_a_flood_of_lines_is_not_streamed_for_ever(open_box):
    lines = []
    box = open_box(on_stdout=lines.append, max_output_length=1000)
    box.execute("for n in range(100_000): print()")
    assert len(lines) <= 1001
    assert "limit reached" in lines[-1]


@pytest.mark.spec("R0.4")
@pytest.mark.needs(Capability.SUBPROCESS)
def test_output_of_child_processes_is_captured_in_order(box):
    result = box.execute(
        "import subprocess, os\nprint('one', flush=True)\nsubprocess.run(['echo', 'two'])\n"
        "os.write(1, b'three\\n')\nsubprocess.run('echo four >&2', shell=True)"
    )
    assert (result.stdout, result.stderr) == ("one\ntwo\nthree\n", "four\n")


@pytest.mark.spec("R0.4")
def test_invalid_utf8_and_surrogates_come_through_as_text(box):
    result = box.execute("import sys; sys.stdout.buffer.write(b'a\\xffb\\n'); print('\\ud800')")
    assert result.stdout == "a\ufffdb\n\\ud800\n"


@pytest.mark.spec("R0.4")
def test_replaced_and_closed_streams_are_made_good(box):
    box.execute("import sys; sys.stdout = None; sys.stderr = None")
    assert box.execute("print('back')").stdout == "back\n"
    box.execute("import sys, os; sys.stdout.close(); os.close(1)")
    assert box.execute("print('again')").stdout == "again\n"


@pytest.mark.spec("R0.4")
def test_input_finds_the_end_at_once(box):
    assert box.execute("input()").error_type == "EOFError"


@pytest.mark.needs(Capability.STREAMING)
def test_output_is_streamed_in_pieces_that_need_no_end_of_line(open_box):
    pieces, seen = [], threading.Event()

    def on_output(stream, text):
        pieces.append((stream, text))
        seen.set()

    box = open_box(on_output=on_output, on_llm_query=lambda prompt: str(seen.wait(10)))
    code = "import sys\nprint('50 %\\r', end='', flush=True)\nprint(llm_query('heard?'), end='')"
    result = box.execute(code + "\nprint('ü', file=sys.stderr)")
    assert (result.stdout, result.stderr) == ("50 %\rTrue", "ü\n")
    assert "".join(text for stream, text in pieces if stream == "stdout") == result.stdout
    assert "".join(text for stream, text in pieces if stream == "stderr") == result.stderr
    assert pieces[0] == ("stdout", "50 %\r")
