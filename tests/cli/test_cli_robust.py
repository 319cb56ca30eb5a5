"""Closed streams, full disks, no home folder, Ctrl-C: one line and an exit code, no traceback."""

import asyncio
import os
import signal
import subprocess

import pytest
from ordinary_user import python_for_user, run_as_user

from atoll import Isolation
from atoll.jail.measure import probe


def run(command, shell, **options):
    """Run `atoll` in a shell line: exit code, stdout, stderr."""
    line = shell.replace("atoll", " ".join(command))
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, timeout=120, **options
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("what", ["run -", "repl", "repl-server", "run -c 1 --context -"])
def test_closed_stdin_is_one_line_and_2(command, what):
    assert run(command, f"atoll {what} <&-") == (2, "", "atoll: cannot read stdin: it is closed\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("atoll run -c 'print(1)' <&-", (0, "1\n", "")),
        ("atoll run -c 'print(1)' 2>&-", (0, "1\n", "")),
        ("atoll run -c 1/0 2>&-", (1, "", "")),
        ("atoll run -c 'print(1)' <&- >&- 2>&-", (1, "", "")),
        (
            "atoll run -c 'print(1)' >&-",
            (1, "", "atoll: cannot write the output: Bad file descriptor\n"),
        ),
        ("atoll --version >&-", (1, "", "atoll: cannot write the output: Bad file descriptor\n")),
        (
            "atoll --help > /dev/full",
            (1, "", "atoll: cannot write the output: No space left on device\n"),
        ),
        (
            "atoll run --json -c 1 > /dev/full",
            (1, "", "atoll: cannot write the output: No space left on device\n"),
        ),
        ("atoll --help | true; exit ${PIPESTATUS[0]}", (141, "", "")),
    ],
)
def test_streams_that_are_closed_or_full(command, line, expected):
    code, out, err = run(command, line)
    if expected[0] != 141 or code != 0:  # `true` may read nothing before all is written
        assert (code, out, err) == expected


@pytest.mark.parametrize("home", [None, "/nonexistent", "/proc"])
@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["run", "-c", "print(6 * 7)"], 0),
        (["doctor", "--backend", "native"], 0),
        (["daemon", "start"], 2),
        (["daemon", "logs"], 2),
        (["wasm", "status"], None),
        (["--help"], 0),
    ],
)
def test_a_user_without_a_home_folder_sees_no_traceback(home, argv, code):
    change = ["env", "-u", "HOME"] if home is None else ["env", f"HOME={home}"]
    done = run_as_user(*change, python_for_user(), "-m", "atoll.cli.main", *argv, timeout=120)
    assert "Traceback" not in done.stderr
    assert code is None or done.returncode == code
    assert done.returncode in (0, 1, 2)
    if done.returncode == 2:
        assert done.stderr.startswith("atoll: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "/dev/zero"], "atoll: cannot read /dev/zero: it is a device, not a file\n"),
        (["run", "-c", "1", "--context", "/dev/zero"], "atoll: cannot read /dev/zero: it is a dev"),
        (["daemon", "start", "--socket", ""], "atoll: --socket must be a path, got ''\n"),
        (["daemon", "start", "--socket", "/etc/passwd"], "atoll: /etc/passwd exists and is a reg"),
        (["ask", "q", "--model", "replay//no/such"], "atoll: the record /no/such cannot be read: "),
        (["trace", "show", "/no/such"], "atoll: cannot read the record '/no/such': No such file"),
        (["trace", "show", "/etc"], "atoll: the record '/etc' is not a regular file\n"),
        (["trace", "html", "/etc/passwd"], "atoll: /etc/passwd is not a record of `atoll ask --tr"),
        (["run", "--files", "/etc/passwd", "-c", "1"], "atoll: the working folder /etc/passwd is "),
    ],
)
def test_what_cannot_be_used_is_one_line_and_2(atoll, argv, message):
    code, out, err = atoll(*argv)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


@pytest.mark.parametrize("action", ["daemon", "wasm", "pyodide"])
def test_status_exits_with_1_if_the_answer_is_no(action, tmp_path):
    python = python_for_user()  # Debian's, where no extra is installed
    argv = [python, "-S", "-m", "atoll.cli.main", action, "status"]
    done = run_as_user(*argv, timeout=120, HOME=str(tmp_path), ATOLL_CACHE="/nonexistent")
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("argv", "ready"),
    [(["doctor", "--attack"], "attacks on"), (["daemon", "logs", "-f"], "a line")],
)
def test_ctrl_c_ends_with_130_and_no_traceback(spawn, tmp_path, argv, ready):
    (tmp_path / "d.sock.log").write_text("a line\n")
    more = ["--socket", str(tmp_path / "d.sock")] if argv[0] == "daemon" else []
    process = spawn(*argv, *more, start_new_session=True)
    while ready not in process.stdout.readline():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


def test_levels_are_spelled_alike_in_print_and_json(atoll):
    assert [str(level) for level in Isolation] == [
        "none", "guarded", "confined", "jailed", "kernel", "virtual",
    ]  # fmt: skip
    assert f"{Isolation.JAILED}" == f"{Isolation.JAILED:>6}" == "jailed"
    assert repr(Isolation.JAILED) == "<Isolation.JAILED: 3>"
    assert Isolation.parse("jailed") is Isolation.parse(3) is Isolation.JAILED
    measured = f'"isolation": "{asyncio.run(probe.host()).level}"'
    assert measured in atoll("run", "--backend", "native", "--json", "-c", "1")[1]
    assert measured in atoll("doctor", "--backend", "native", "--json")[1]
