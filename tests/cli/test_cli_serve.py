"""`atoll serve` as a process, and `atoll keys`."""

from __future__ import annotations

import json
import re
import signal
import sys

import pytest

from atoll import create_sandbox

pytest.importorskip("uvicorn")


def test_serve_prints_a_key_runs_code_and_drains_at_sigterm(spawn, atoll, monkeypatch, tmp_path):
    at = ["--folder", str(tmp_path)]
    process = spawn("serve", "--port", "0", "--tier", "bare", *at)
    shown = ""
    while "Ctrl-C" not in shown:
        shown += process.stdout.readline()
    url, key = re.search(r"http://127\.0\.0\.1:\d+", shown)[0], re.search(r"atl_\S+", shown)[0]
    monkeypatch.setenv("ATOLL_API_KEY", key)
    assert atoll("run", "--url", url, "-c", "print(6 * 7)") == (0, "42\n", "")
    listed = json.loads(atoll("keys", "list", "--json", *at)[1])["keys"]
    assert [one["name"] for one in listed] == ["first key"]
    code, second, _ = atoll("keys", "add", "second", "--quota", "sessions=1", *at)
    assert (code, len(second)) == (0, 57)
    lines = atoll("keys", "list", *at)[1].splitlines()
    assert lines[0].split() == ["ID", "STATE", "TENANT", "USED", "SCOPES", "LIMITS", "NAME"]
    assert "sessions=1" in lines[2]
    assert atoll("keys", "revoke", key.split("_")[1], *at)[0] == 0
    assert "not known, expired or revoked" in atoll("run", "--url", url, "-c", "1")[2]
    monkeypatch.setenv("ATOLL_API_KEY", second.strip())
    assert atoll("run", "--url", url, "-c", "raise SystemExit(3)")[0] == 3
    assert atoll("sessions", "list", "--url", url)[2] == "atoll: no session is open\n"
    with create_sandbox(backend="remote", url=url, api_key=second.strip()) as box:
        box.execute("x = 1")
        head, row = atoll("sessions", "list", "--url", url)[1].splitlines()
        assert head.split() == ["ID", "STATE", "AGE", "IDLE", "CELLS", "MEMORY", "CPU", "NAME"]
        ident = row.split()[0]
        assert json.loads(atoll("sessions", "show", ident, "--url", url)[1])["executions"] == 1
        code, _, complaint = atoll("sessions", "list", "--all-tenants", "--url", url)
        assert (code, "scope 'admin'" in complaint) == (2, True)
        assert atoll("sessions", "end", ident, "--url", url)[0] == 0
        assert "no such session" in atoll("sessions", "end", ident, "--url", url)[2]
    process.send_signal(signal.SIGTERM)
    _, complaints = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in complaints) == (0, False)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "--url", "ftp://x", "-c", "1"], "url must begin with http:// or https://"),
        (
            ["run", "--url", "http://x", "--backend", "wasm", "-c", "1"],
            "--url is for the backend remote",
        ),
        (["keys", "add", "--quota", "sesions=1"], "did you mean 'sessions'?"),
        (["keys", "add", "--quota", "sessions=x"], "--quota must be NAME=NUMBER"),
        (["keys", "add", "--quota", "memory_bytes=1X"], "such as memory_bytes=1G"),
        (["keys", "add", "--tenant", "a b"], "a tenant has 1 to 64"),
        (["serve"], "port must be at most 65535, not 99999"),
        (["serve", "--port", "1", "--host", "203.0.113.1"], "cannot serve at 203.0.113.1:1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(atoll, monkeypatch, tmp_path, argv, words):
    monkeypatch.setenv("ATOLL_API_KEY", "atl_x")
    monkeypatch.setenv("ATOLL_SERVE_FOLDER", str(tmp_path))
    monkeypatch.setenv("ATOLL_SERVE_PORT", "99999")
    code, out, err = atoll(*argv)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("argv", [["serve"], ["keys", "list"]])
def test_without_its_extra_the_service_says_what_to_type(atoll, monkeypatch, argv):
    for name in [one for one in sys.modules if one.startswith("atoll.service")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    code, _, err = atoll(*argv)
    assert (code, "need the extra `server`. Type: " in err, "pip install" in err) == (2, True, True)
