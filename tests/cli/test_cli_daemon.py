"""`atoll daemon`: start, status, stop, logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from atoll.cli.commands import daemon
from atoll.daemon import lifecycle
from atoll.daemon.paths import DaemonPaths


@pytest.fixture
def at(tmp_path):
    """The option that names this test's own place; its daemon ends with the test."""
    place = DaemonPaths(tmp_path / "new" / "d.sock")
    yield ["--socket", str(place.socket)]
    lifecycle.stop(place)


def test_a_daemon_from_start_to_stop(atoll, at):
    code, out, err = atoll("daemon", "start", "--tier", "bare", *at)
    assert (code, out) == (0, "")
    assert at[1] in err
    code, out, _ = atoll("daemon", "status", *at)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "pid", "socket", "uptime", "isolation", "connections", "sessions", "executions",
        "tier",
    ]  # fmt: skip
    _, out, _ = atoll("daemon", "status", "--json", *at)
    facts = json.loads(out)
    assert (facts["running"], facts["isolation"], facts["sessions"]) == (True, "jailed", 0)
    code, out, _ = atoll("daemon", "logs", "-n", "1", *at)
    assert (code, "started with pid" in out) == (0, True)
    code, out, _ = atoll("daemon", "stop", *at)
    assert (code, out) == (
        0,
        f"the daemon (pid {facts['pid']}) has stopped, and 0 sessions with it\n",
    )
    assert not os.path.exists(at[1])


def test_a_second_start_is_no_fault_unless_it_wants_something_else(atoll, at):
    atoll("daemon", "start", "--tier", "bare", *at)
    code, _, err = atoll("daemon", "start", *at)
    assert (code, "runs already" in err) == (0, True)
    code, _, err = atoll("daemon", "start", "--max-live", "3", *at)
    assert (code, "stop it to start it with other options" in err) == (1, True)


def test_without_a_daemon_each_command_says_so(atoll, at):
    code, out, _ = atoll("daemon", "status", *at)
    assert (code, "Type: atoll daemon start" in out) == (1, True)
    _, out, _ = atoll("daemon", "status", "--json", *at)
    assert json.loads(out)["running"] is False
    assert atoll("daemon", "stop", *at)[0] == 0
    code, _, err = atoll("daemon", "logs", *at)
    assert (code, "there is no log" in err) == (2, True)


@pytest.mark.parametrize(
    "options",
    [
        ["--idle-timeout", "0"],
        ["--max-sessions", "x"],
        ["--max-live", "0"],
        ["--max-memory", "much"],
    ],
)
def test_options_that_cannot_be_are_refused(atoll, at, options):
    code, _, err = atoll("daemon", "start", *options, *at)
    assert (code, options[0] in err) == (2, True)


def test_a_path_that_is_too_long_is_one_clear_line(atoll, tmp_path):
    code, _, err = atoll("daemon", "start", "--socket", str(tmp_path / ("x" * 120)))
    assert code == 2
    assert "choose a shorter one with --socket" in err


def test_in_the_foreground_it_stays_until_ctrl_c(spawn, at):
    process = spawn("daemon", "start", "--foreground", "--tier", "bare", *at)
    assert "listening at" in process.stderr.readline()
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert not os.path.exists(at[1])


@pytest.mark.long
def test_logs_can_be_followed(spawn, atoll, at):
    atoll("daemon", "start", "--tier", "bare", *at)
    follower = spawn("daemon", "logs", "-f", *at)
    assert "importing the libraries" in follower.stdout.readline()
    assert any("started" in line for line in follower.stdout)
    atoll("daemon", "stop", *at)
    assert "stopped" in follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    assert follower.wait(20) == 130


def test_run_uses_a_daemon_that_runs(atoll, at, monkeypatch):
    atoll("daemon", "start", *at)
    monkeypatch.setenv("ATOLL_DAEMON_SOCKET", at[1])
    code, out, _ = atoll("run", "-c", "print(6 * 7)")
    assert (code, out) == (0, "42\n")
    end = time.monotonic() + 30
    # The program, and what Python does at the end of one: threads, atexit.
    while lifecycle.status(DaemonPaths(__import__("pathlib").Path(at[1])))["executions"] != 2:
        assert time.monotonic() < end


def test_start_says_which_libraries_are_missing_and_what_to_type(atoll, at):
    argv = ["--preload", "import no_such_library.part", "--preload", "import antigravity_not"]
    code, _, err = atoll("daemon", "start", "--tier", "bare", *argv, *at)
    assert code == 0
    missing = "atoll: tier bare: not installed: no_such_library, antigravity_not. Type: "
    assert missing in err
    assert "-m pip install antigravity_not no_such_library, and restart" in err


def test_a_long_start_says_no_line_twice(capsys, monkeypatch):
    clock = SimpleNamespace(monotonic=iter([0.0, 6.0, 16.0]).__next__)
    monkeypatch.setattr(daemon, "time", clock)
    say = daemon._waiting_said()
    for doing in ("starting", "starting", "importing numpy", "importing numpy"):
        say(doing)
    assert capsys.readouterr().err.splitlines() == [
        "atoll: starting ...", "atoll: starting ... 6 s",
        "atoll: importing numpy ...", "atoll: importing numpy ... 16 s",
    ]  # fmt: skip


def test_the_hint_names_packages_as_pypi_does():
    pool = {"full": {"missing": [
        "sklearn.tree: ModuleNotFoundError: No module named 'sklearn'",
        "sklearn.cluster: ModuleNotFoundError: No module named 'sklearn'",
        "seaborn: ImportError: broken build",
    ]}}  # fmt: skip
    first, second = daemon.missing_libraries(pool)
    assert first.startswith("tier full: not installed: sklearn. Type: ")
    assert first.endswith("-m pip install scikit-learn, and restart")
    assert second == "tier full: cannot be imported: seaborn (ImportError: broken build)"


@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_start_and_stop_leave_a_file_that_is_not_the_daemons(atoll, tmp_path, what):
    path = tmp_path / "precious"
    {
        "file": lambda: path.write_text("data"),
        "folder": path.mkdir,
        "link": lambda: path.symlink_to("elsewhere"),
    }[what]()
    code, _, err = atoll("daemon", "start", "--tier", "bare", "--socket", str(path))
    assert code == 2
    assert f"atoll: {path} exists and is a " in err
    assert atoll("daemon", "stop", "--socket", str(path))[0] == 0
    assert atoll("daemon", "status", "--socket", str(path))[0] == 1
    assert os.listdir(tmp_path) == ["precious"]
    assert what != "file" or path.read_text() == "data"


def test_stdin_and_arguments_reach_a_program_in_the_daemon(spawn, atoll, at, monkeypatch):
    atoll("daemon", "start", "--tier", "bare", *at)
    monkeypatch.setenv("ATOLL_DAEMON_SOCKET", at[1])
    code = "import sys; print(input(), sys.stdin.read().split(), sys.argv)"
    process = spawn("run", "--backend", "daemon", "-c", code, "x")
    assert process.communicate("a\nb c\n") == ("a ['b', 'c'] ['-c', 'x']\n", "")


CLIENT = """
import atoll
with atoll.create_sandbox(backend="daemon") as box:
    print(box.execute("1").cold_start, box.fork().execute("6 * 7").value)
"""


@pytest.mark.parametrize(
    ("started", "client"),
    [(["python3", "atoll"], "python"), (["python", "-m", "atoll.cli.main"], "python3")],
    ids=["the console script", "the module"],
)
def test_every_name_of_the_interpreter_is_served_warm(at, started, client):
    """pip writes one name of a venv's Python into the script; the client may run under another."""
    folder = os.path.dirname(sys.executable)
    paths = [os.path.join(folder, name) for name in (*started[:2], client)]
    if not all(map(os.path.exists, (paths[0], paths[-1]))):
        pytest.skip("this Python has no such names")
    command = [paths[0], *(paths[1:2] if started[1] == "atoll" else started[1:])]
    options = ["daemon", "start", "--tier", "bare", *at]
    subprocess.run([*command, *options], check=True, capture_output=True, timeout=60)
    env = {**os.environ, "ATOLL_DAEMON_SOCKET": at[1]}
    done = subprocess.run(
        [paths[-1], "-c", CLIENT], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "None 42\n", done.stderr


def test_the_status_says_what_started_cold_and_why():
    facts = {"pid": 1, "uptime_seconds": 1, "isolation": "jailed", "reason": "", "connections": 0,
             "sessions": 1, "live": 1, "executions": 1, "executing": 0, "queued": 0, "pool": {},
             "cold_starts": {"the sandbox has mounts": 2}}  # fmt: skip
    text = daemon.describe(facts, DaemonPaths(Path("/run/d.sock")))
    assert "cold starts  2: the sandbox has mounts" in text
