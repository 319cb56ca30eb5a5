"""`atoll run`: what it prints and with what it exits."""

import json
import os
import subprocess
import sys

import pytest

from atoll.cli.commands import cells
from atoll.types import Outcome, SandboxResult


@pytest.mark.spec("R0.4")
def test_output_goes_to_the_right_stream_and_no_value_is_printed(atoll):
    code = "import sys; print('out'); print('err', file=sys.stderr); 6 * 7"
    assert atoll("run", "-c", code) == (0, "out\n", "err\n")


@pytest.mark.parametrize(
    "text", ["", "a", "a\n", "a\nb", "a\n\n", "\n", "\n\na", "ä\r\n€ \t", "a\x0bb\u2028c"]
)
def test_output_is_exact_to_the_last_newline(atoll, text):
    code = f"import sys; sys.stdout.write({text!r}); sys.stderr.write({text!r})"
    assert atoll("run", "-c", code) == (0, text, text)


def test_output_of_a_guest_that_dies_is_exact(atoll):
    code, out, err = atoll("run", "-c", "import os; os.write(1, b'a\\nb'); os._exit(3)")
    assert (code, out) == (3, "a\nb")
    assert err == "atoll: ProcessExited: the guest's process ended itself with exit code 3\n"


def test_much_output_comes_whole(atoll):
    code, out, err = atoll("run", "-c", "for n in range(100_000): print(n)")
    assert (code, err) == (0, "")
    assert out == "".join(f"{n}\n" for n in range(100_000))


@pytest.mark.spec("R0.7")
def test_output_beyond_the_limit_is_cut_and_said_so(atoll, monkeypatch):
    monkeypatch.setattr("atoll.cli.terminal.streams.STREAM_LIMIT", 100)
    monkeypatch.setattr("atoll.cli.settings.STREAM_LIMIT", 100)
    monkeypatch.setattr("atoll.cli.commands.cells.STREAM_LIMIT", 100)
    code, out, err = atoll("run", "-c", "for n in range(100): print('line', n)")
    assert code == 0
    assert out.startswith("line 0\nline 1\n")
    assert len(out) <= 110
    assert err == "atoll: output cut: a stream has more than 100 characters\n"


def test_an_exception_exits_with_1_and_its_traceback(atoll):
    code, out, err = atoll("run", "-c", "1 / 0")
    assert (code, out) == (1, "")
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith("ZeroDivisionError: division by zero\n")


ENDS_LATER = """
import atexit, sys, threading, time
atexit.register(print, 'last')
begun = threading.Event()
def late():
    begun.wait()
    time.sleep(0.05)
    print('from a thread')
threading.Thread(target=late).start()
print('first')
begun.set()
sys.exit(3)
"""


def test_threads_end_and_atexit_runs_before_the_program_is_over(atoll):
    assert atoll("run", "-c", ENDS_LATER) == (3, "first\nfrom a thread\nlast\n", "")


def test_the_exit_code_is_passed_on(atoll):
    assert atoll("run", "-c", "raise SystemExit(7)") == (7, "", "")
    assert atoll("run", "-c", "import sys; sys.exit('gone')") == (1, "", "gone\n")
    assert atoll("run", "-c", "exit()") == (0, "", "")


@pytest.mark.spec("R0.5")
def test_a_timeout_exits_with_124_and_says_why(atoll):
    code, _, err = atoll("run", "--timeout", "0.2", "-c", "while True: pass")
    assert code == 124
    assert err.endswith("atoll: TimeoutError: the execution took longer than 200 ms\n")


def test_the_memory_limit_is_passed_on(atoll):
    code, _, err = atoll("run", "--memory", "64M", "-c", "b = bytearray(200 << 20)")
    assert code == 1
    assert err.endswith(
        "MemoryError: the sandbox's memory is limited (policy: memory_bytes, or --memory)\n"
    )


def test_a_guest_that_ends_itself_is_never_a_success():
    result = SandboxResult(kind=Outcome.EXITED, error="ProcessExited: x", state_lost=True)
    assert cells.exit_code(result) == 1


@pytest.mark.parametrize("number", [-1, 256, 10**9])
def test_an_exit_code_that_is_none_is_1(number):
    assert cells.exit_code(SandboxResult(kind=Outcome.EXITED, exit_code=number)) == 1


def test_a_file_is_run(atoll, tmp_path):
    path = tmp_path / "hällo.py"
    path.write_text("\ufeffprint('hällo')\n", "utf-8")
    assert atoll("run", str(path)) == (0, "hällo\n", "")


def test_code_comes_from_stdin(spawn):
    process = spawn("run", "-")
    assert process.communicate("print(6 * 7)") == ("42\n", "")
    assert process.returncode == 0


@pytest.mark.spec("R0.1")
def test_a_context_file_is_the_variable_context(atoll, tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("ü" * 200_000, "utf-8")
    out = atoll("run", "--context", str(path), "-c", "print(type(context).__name__, len(context))")
    assert out == (0, "str 200000\n", "")


def test_an_empty_context_file_is_an_empty_context(atoll, tmp_path):
    (tmp_path / "empty").touch()
    path = str(tmp_path / "empty")
    assert atoll("run", "--context", path, "-c", "print(repr(context))") == (0, "''\n", "")


def test_a_context_comes_from_stdin(spawn):
    process = spawn("run", "--context", "-", "-c", "print(context.upper())")
    assert process.communicate("text")[0] == "TEXT\n"


def test_a_context_comes_from_a_pipe(atoll, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(["sh", "-c", f"echo hello > {pipe}"])
    assert atoll("run", "--context", str(pipe), "-c", "print(context)") == (0, "hello\n\n", "")
    writer.wait()


@pytest.mark.spec("R1.7")
def test_a_host_folder_is_app(atoll, tmp_path):
    (tmp_path / "in.txt").write_text("given")
    code = "open('out.txt', 'w').write(open('/app/in.txt').read() + ' and taken')"
    assert atoll("run", "--files", str(tmp_path), "-c", code) == (0, "", "")
    assert (tmp_path / "out.txt").read_text() == "given and taken"


def test_code_and_context_from_stdin_are_an_error(atoll):
    text = "atoll: code and context cannot both come from stdin: give one as a file\n"
    assert atoll("run", "-", "--context", "-") == (2, "", text)


@pytest.mark.parametrize("option", ["file", "context"])
def test_what_cannot_be_read_is_one_line_and_2(atoll, tmp_path, option):
    binary = tmp_path / "binary"
    binary.write_bytes(b"ok\xff\xfe")

    def error(path) -> str:
        argv = [str(path)] if option == "file" else ["-c", "1", "--context", str(path)]
        code, out, err = atoll("run", *argv)
        assert (code, out) == (2, "")
        return err

    assert (
        error(tmp_path / "no") == f"atoll: cannot read {tmp_path}/no: No such file or directory\n"
    )
    assert error(tmp_path) == f"atoll: cannot read {tmp_path}: Is a directory\n"
    assert error(binary) == f"atoll: {binary} is not UTF-8 text (byte 2)\n"


def test_a_missing_folder_is_an_error(atoll, tmp_path):
    code, _, err = atoll("run", "--files", str(tmp_path / "no"), "-c", "1")
    assert code == 2
    assert err == f"atoll: the working folder {tmp_path}/no does not exist: create it first\n"


@pytest.mark.spec("R0.17")
def test_an_unknown_backend_is_an_error(atoll, monkeypatch):
    assert atoll("run", "--backend", "cloud", "-c", "1")[0] == 2
    monkeypatch.setenv("ATOLL_BACKEND", "fog")
    code, _, err = atoll("run", "-c", "1")
    assert code == 2
    assert err.startswith(
        "atoll: ATOLL_BACKEND: unknown backend 'fog': use one of 'auto', 'native'"
    )


def test_the_service_of_the_environment_is_used_unless_a_backend_is_named(atoll, monkeypatch):
    monkeypatch.setenv("ATOLL_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ATOLL_API_KEY", "atl_key")
    code, out, err = atoll("run", "-c", "print(1)")
    assert (code, out) == (2, "")
    assert "127.0.0.1:1" in err
    assert atoll("run", "--backend", "native", "-c", "print(1)")[:2] == (0, "1\n")
    monkeypatch.setenv("ATOLL_BACKEND", "native")
    assert atoll("run", "-c", "print(1)")[:2] == (0, "1\n")


def test_isolation_that_is_not_to_be_had_is_an_error(atoll):
    code, out, err = atoll("run", "--backend", "native", "--min-isolation", "virtual", "-c", "1")
    assert (code, out) == (2, "")
    assert "virtual was asked for, and it offers jailed" in err
    assert err.count("\n") == 1


def test_a_python_that_is_none_is_an_error(atoll):
    code, _, err = atoll("run", "--python", "/bin/true", "-c", "1")
    assert code == 2
    assert err.startswith("atoll: ")
    assert err.count("\n") == 1


@pytest.mark.spec("R1.8")
def test_json_is_the_whole_result_and_nothing_else(atoll, tmp_path):
    code = "print('hi'); open('new.txt', 'w').close(); {'a': (1, 2.5)}"
    status, out, err = atoll("run", "--json", "--files", str(tmp_path), "-c", code)
    assert (status, err) == (0, "")
    result = json.loads(out)
    assert result["success"] is True
    assert result["kind"] == "ok"
    assert result["stdout"] == "hi\n"
    assert result["value"] == {"a": {"$": "tuple", "v": [1, 2.5]}}
    assert result["value_repr"] == "{'a': (1, 2.5)}"
    assert result["files_created"] == ["new.txt"]
    assert result["artifacts"] == [{"path": "new.txt", "size": 0, "media_type": "text/plain"}]
    assert result["workspace_path"] == str(tmp_path)
    assert result["isolation"] in {"jailed", "confined"}


def test_json_of_a_failure_keeps_stderr_quiet(atoll):
    status, out, err = atoll("run", "--json", "-c", "object(); 1 / 0")
    result = json.loads(out)
    assert (status, err) == (1, "")
    assert result["error"] == "ZeroDivisionError: division by zero"
    assert "Traceback" in result["stderr"]


def test_json_of_a_value_without_a_plain_form(atoll):
    _, out, _ = atoll("run", "--json", "-c", "range")
    assert json.loads(out)["value"] == {"$": "object", "type": "type", "v": "<class 'range'>"}


FIGURE = "class Figure:\n    def _repr_png_(self): return b'\\x89PNG'\nFigure()"


def test_figures_are_saved_and_named(atoll, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").write_text("kept")
    (tmp_path / "figure-1.png").symlink_to("elsewhere")
    assert atoll("run", "-c", FIGURE) == (0, "", "atoll: figure saved: figure-2.png\n")
    assert (tmp_path / "figure-2.png").read_bytes() == b"\x89PNG"
    assert (tmp_path / "elsewhere").read_text() == "kept"
    code, _, err = atoll("run", "--figures", "new/folder", "-c", FIGURE)
    assert (code, err) == (0, "atoll: figure saved: new/folder/figure-1.png\n")
    code, out, err = atoll("run", "--json", "-c", FIGURE)
    assert (code, err) == (0, "")
    assert json.loads(out)["displays"] == [{"media_type": "image/png", "data": "iVBORw=="}]
    assert sorted(os.listdir()) == ["elsewhere", "figure-1.png", "figure-2.png", "new"]


def test_figures_that_cannot_be_saved_are_named_and_the_program_has_run(
    atoll, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    code, out, err = atoll("run", "--figures", str(tmp_path / "file"), "-c", "print(1)")
    assert (code, out) == (2, "")
    assert err == f"atoll: --figures: {tmp_path}/file is not a folder\n"
    code, out, err = atoll(
        "run", "--figures", str(tmp_path / "file/x"), "-c", f"print(1)\n{FIGURE}"
    )
    assert (code, out) == (0, "1\n")
    assert err.startswith(f"atoll: a figure cannot be saved in {tmp_path}/file/x: Not a directory")


def test_displays_are_in_the_json(atoll):
    code = "class Rich:\n  def _repr_html_(self): return '<b>'\nRich()"
    _, out, _ = atoll("run", "--json", "-c", code)
    assert json.loads(out)["displays"] == [{"media_type": "text/html", "data": "PGI+"}]


def test_json_holds_arguments_of_an_exception_that_json_has_no_form_for(atoll):
    code = "raise ValueError(b'x', object(), float('nan'))"
    exit_code, out, _ = atoll("run", "--json", "-c", code)
    first, second, third = json.loads(out)["error_args"]
    assert (exit_code, first, second["type"]) == (1, {"$": "bytes", "v": "eA=="}, "object")
    assert third == {"$": "float", "v": "nan"}


def test_the_traceback_of_a_script_names_its_file(atoll, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("def f():\n    1 / 0\nf()\n")
    code, _, err = atoll("run", str(script))
    assert code == 1
    assert f'File "{script}", line 3, in <module>\n    f()\n' in err
    assert f'File "{script}", line 2, in f\n    1 / 0\n' in err


def test_a_script_is_read_in_the_encoding_that_it_declares(atoll, tmp_path):
    script = tmp_path / "old.py"
    script.write_bytes(b"# -*- coding: latin-1 -*-\nprint('\xe9')\n")
    assert atoll("run", str(script)) == (0, "\xe9\n", "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--memory", "999999999T"), "memory_bytes must be at most 9,223,372,036,854,775,807"),
        (("--mount", ".:/d", "--mount", ".:/d"), "two mounts have the target '/d'"),
        (("--mount", ".:/usr"), "a mount cannot replace /usr, where the guest's programs are"),
        (("--backend", "natve"), "got 'natve'. Did you mean native?"),
        (("--verbose",), "unknown option --verbose. Put arguments"),
    ],
)
def test_what_no_sandbox_can_be_started_with_is_said_before_one_is(atoll, options, said):
    code, out, err = atoll("run", *options, "-c", "print(1)")
    assert (code, out) == (2, "")
    assert said in err


def test_python_m_atoll_is_the_command_line():
    command = [sys.executable, "-m", "atoll", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("atoll ")
