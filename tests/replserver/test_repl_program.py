"""`atoll repl-server` as a program: its frames, guests that try to forge them, and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from replkit import PATIENCE_SECONDS, plain, running, wait_for

FORGED = (
    '>>> RESPONSE_END <<<\\n>>> RESPONSE_START <<<\\n{"stdout": "forged"}\\n>>> RESPONSE_END <<<\\n'
)
LINGER = "import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 600; : {}'])\n"


@pytest.mark.spec("R2.1", "R2.2", "R2.3")
def test_ready_then_one_response_a_request(program):
    server = program("--python", sys.executable)
    response = server.ask("print('Hello, World!')")
    assert {name: response[name] for name in ("stdout", "stderr", "exit_code", "state")} == {
        "stdout": "Hello, World!\n",
        "stderr": "",
        "exit_code": 0,
        "state": None,
    }
    assert (response["files"], response["error"]) == ([], None)
    assert server.ask("open('output.png', 'wb').close()")["files"] == ["output.png"]
    assert server.ask("print(1)", capture_state=False, state=None)["stdout"] == "1\n"
    assert server.end() == 0


@pytest.mark.spec("R2.17")
def test_preloads_are_names_of_modules_or_import_statements(program):
    server = program(
        "--preload", "decimal", "--preload", "import xml.dom", "--preload", "import calendar as c"
    )
    code = "print([globals()[name].__name__ for name in ('decimal', 'xml', 'c')], xml.dom.Node)"
    response = server.ask(code)
    assert response["stdout"] == "['decimal', 'xml', 'calendar'] <class 'xml.dom.Node'>\n", response


@pytest.mark.spec("R2.17", "R2.8")
def test_without_repl_mode_each_request_starts_cold_and_state_persists(program, monkeypatch):
    monkeypatch.setenv("REPL_ENABLED", "false")
    server = program("--preload", "decimal")
    names = "print('decimal' in globals(), 'decimal' in __import__('sys').modules)\nx = 41"
    response = server.ask(names, capture_state=True)
    assert response["stdout"] == "False False\n"
    assert server.ask("print(x + 1)", state=response["state"])["stdout"] == "42\n"
    assert server.end() == 0
    assert b"importing the libraries" not in server.process.stderr.read()


FORGERIES = {
    "print": "print(text)",
    "streams": "import sys; sys.stderr.write(text); sys.__stdout__.write(text)",
    "every fd": (
        "import os\nfor fd in range(4200):\n"
        "  try: os.write(fd, text.encode())\n  except OSError: pass"
    ),
    "proc": (
        "import os, glob\nfor path in glob.glob('/proc/*/fd/*'):\n"
        "  try:\n    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK); os.write(fd, text.encode())\n"
        "  except OSError: pass"
    ),
    "fork": (
        "import os\nif os.fork() == 0:\n  os.setsid()\n"
        "  for _ in range(200):\n    os.write(1, text.encode())\n  os._exit(0)"
    ),
    "late fork": (
        "import os, time\nif os.fork() == 0:\n  os.setsid()\n  while True:\n"
        "    time.sleep(0.001); os.write(1, text.encode()); os.write(2, text.encode())"
    ),
    "error": "raise ValueError(text)",
    "file name": "open(text.replace('/', ' ').replace('\\n', '\\r'), 'w').close()",
    "child": "import subprocess; subprocess.run(['cat'], input=text.encode())",
}


@pytest.mark.spec("R2.2")
def test_a_guest_that_writes_markers_breaks_and_forges_nothing(program):
    """One server for them all: each request has a sandbox of its own."""
    server = program("--no-prefetch")
    for name, attack in FORGERIES.items():
        response = server.ask(f"text = '{FORGED}'\n{attack}")  # asserts that it is one whole frame
        assert response["stdout"] != "forged", name
        assert "exit_code" in response, name
        again = server.ask("import time; time.sleep(0.1); print('mine')")
        assert (again["stdout"], again["stderr"], again["error"]) == ("mine\n", "", None), name
    assert server.end() == 0


@pytest.mark.long
@pytest.mark.spec("R2.2")
def test_the_markers_are_in_the_output_as_they_were_printed(program):
    text = ">>> REQUEST_END <<<\n>>> RESPONSE_END <<<\n"
    assert program().ask(f"print({text!r}, end='')")["stdout"] == text


def test_requests_that_are_none_are_refused_and_the_next_is_served(program):
    server = program()
    server.process.stdin.write(b"stray\n>>> REQUEST_START <<<\nnot json\n>>> REQUEST_END <<<\n")
    refused = server.read_until(b"RESPONSE_END <<<\n")
    assert b'"error": "bad request: not JSON' in refused
    assert b'"kind": "refused"' in refused
    bad_state = server.ask("print(1)", state="%")
    assert (bad_state["kind"], bad_state["stdout"]) == ("bad-state", "")
    assert bad_state["error"].startswith("State restoration failed: ")
    assert server.ask("print(1)")["stdout"] == "1\n"
    assert server.end() == 0
    assert b"ignored a line outside of a frame: b'stray'" in server.process.stderr.read()


@pytest.mark.long
def test_files_as_stdin_and_stdout(tmp_path):
    frame = b'>>> REQUEST_START <<<\n{"code": "print(%d)"}\n>>> REQUEST_END <<<\n'
    (tmp_path / "in").write_bytes(frame % 1 + frame % 2)
    with open(tmp_path / "in") as requests, open(tmp_path / "out", "w") as responses:
        done = subprocess.run(
            [sys.executable, "-m", "atoll.cli.main", "repl-server", "--python", plain()],
            stdin=requests,
            stdout=responses,
            timeout=PATIENCE_SECONDS,
        )
    assert done.returncode == 0
    lines = (tmp_path / "out").read_text().splitlines()
    assert [json.loads(line)["stdout"] for line in lines if line.startswith("{")] == ["1\n", "2\n"]


@pytest.mark.spec("R2.11")
def test_a_timeout_ends_all_that_the_sandbox_started(program, token):
    server = program()
    response = server.ask(LINGER.format(token) + "print('x')\nwhile True: pass", timeout=1)
    assert (response["kind"], response["exit_code"], response["stdout"]) == ("timeout", 124, "x\n")
    assert running(token) == []
    assert server.ask("print(1)")["stdout"] == "1\n"


@pytest.mark.spec("R2.10")
def test_nothing_of_a_request_outlives_its_response(program, token):
    response = program().ask(LINGER.format(token) + "print('started')")
    assert response["stdout"] == "started\n"
    assert running(token) == []


def test_a_client_that_goes_away_takes_the_running_request_with_it(program, token):
    server = program()
    server.send({"code": LINGER.format(token) + "while True: pass"})
    assert wait_for(lambda: running(token))
    server.process.stdin.close()
    server.process.stdout.close()
    assert server.process.wait(PATIENCE_SECONDS) == 0
    assert wait_for(lambda: not running(token))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_killed_leaves_nothing(program, token, number):
    server = program()
    server.send({"code": LINGER.format(token) + "while True: pass"})
    assert wait_for(lambda: running(token))
    os.kill(server.process.pid, number)
    assert server.process.wait(PATIENCE_SECONDS) != 0
    assert wait_for(lambda: not running(token))


def test_a_server_says_what_it_does_before_it_is_ready(program):
    server = program()
    server.end()
    told = server.process.stderr.read().decode()
    assert "atoll repl-server: importing the libraries of warm interpreters (tiers: " in told


@pytest.mark.long
@pytest.mark.spec("R2.13")
def test_debug_tells_sizes_and_contents_only_on_demand(program):
    server = program("--debug")
    server.ask("secret = 1", timeout=5)
    server.end()
    told = server.process.stderr.read().decode()
    assert "request 1: code 10 characters, state 0 bytes" in told
    assert "response 1: ok, exit code 0" in told
    assert "secret" not in told
    server = program("--debug-contents")
    server.ask("secret = 1")
    server.end()
    assert "secret = 1" in server.process.stderr.read().decode()


def test_a_server_that_cannot_serve_says_so_and_is_not_ready(program):
    server = program("--python", "/no/such/python", ready=False)
    out, err = server.process.communicate(timeout=PATIENCE_SECONDS)
    assert (server.process.returncode, out) == (2, b"")
    assert b"no Python interpreter" in err
