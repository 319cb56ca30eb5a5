"""macOS and Windows: clients of a remote Atoll use it without a module that only Linux has.

Shown on Linux, with the modules and names that the other systems lack hidden.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = ("darwin", "win32")
OPEN_REMOTE = """
import atoll
try:
    atoll.create_sandbox(backend="remote", url="http://127.0.0.1:9", api_key="k")
except atoll.AtollError as exc:
    print(type(exc).__name__)
print([name for name in modules() if name.startswith(("atoll.jail", "atoll.launch"))])
"""
USE_REMOTE = """
import sys, atoll
from pathlib import Path
url, key, folder = sys.argv[1:]
place = {"backend": "remote", "url": url, "api_key": key}
tools = {"add": lambda a, b: a + b}
with atoll.create_sandbox(**place, context="n\\xe9 " * 50_000, tools=tools) as box:
    print(box.execute("len(context)").value, box.execute("add(2, 3)").value)
    box.files.upload([("a.txt", b"hi")])
    print(box.shell("cat a.txt").stdout)
    with box.fork() as twin:
        print(twin.execute("context[1]").value)
    print(box.execute("import time; time.sleep(60)", timeout_ms=200).kind)
    state = box.save()
with atoll.create_sandbox(**place, state=state) as box:
    print(box.execute("2 + 2").value)
for name, context in (("a", "a" * 100_000), ("e", "\\xe9" * 100_000), ("w", "\\u20ac" * 100_000)):
    file = Path(folder, name)
    file.write_text(context, encoding="utf-8")
    with atoll.create_sandbox(**place, context=file) as box:
        print(box.execute("len(context), context[0]").value == (100_000, context[0]))
with atoll.create_sandbox(**place, context={"a": list(range(50_000))}) as box:
    print(box.execute("len(context['a'])").value)
"""
COMMAND = """
import os, sys
os.O_BINARY = 0  # of Windows
from atoll.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
NEED_LINUX = """
from atoll.cli.main import main
for argv in ("exec true", "serve", "daemon start", "doctor --fix", "run --backend native -c 1"):
    assert main(argv.split()) == 2
"""
MCP = (
    ("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}),
    ("tools/call", {"name": "run_python", "arguments": {"code": "print(6 * 7)"}}),
    ("tools/call", {"name": "context_open", "arguments": {"name": "t", "text": "one\ntwo \xe9\nthree \u20ac"}}),
    ("tools/call", {"name": "context_grep", "arguments": {"name": "t", "pattern": "t[wh]"}}),
)  # fmt: skip


def command(system: str, code: str, *arguments: str) -> list[str]:
    """Return a command that runs code where what Linux has is missing."""
    return [sys.executable, str(ROOT / "tools" / "other_system.py"), system, code, *arguments]


def run(system: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code where the modules, signals and flags of Linux are missing."""
    argv = command(system, code, *arguments)
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_remote_sandbox_is_asked_for_without_a_module_of_linux(system: str) -> None:
    done = run(system, OPEN_REMOTE)
    assert done.stderr == ""
    name, loaded = done.stdout.splitlines()
    assert name in {"SandboxLostError", "SandboxStartError", "BackendUnavailableError"}
    assert loaded == "[]"


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_remote_sandbox_is_used_in_full(system: str, own_service, tmp_path: Path) -> None:
    done = run(system, USE_REMOTE, *own_service.start(), str(tmp_path))
    assert done.stderr == ""
    seen = ["150000 5", "hi", "\xe9", "timeout", "4", "True", "True", "True", "50000"]
    assert done.stdout.split("\n")[:-1] == seen


@pytest.mark.parametrize("system", SYSTEMS)
def test_an_mcp_client_reaches_a_remote_service(system: str, own_service, monkeypatch) -> None:
    pytest.importorskip("mcp")
    url, key = own_service.start()
    monkeypatch.setenv("ATOLL_API_KEY", key)
    argv = command(system, COMMAND, "mcp", "--url", url)
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        said = [ask(server, number, *request) for number, request in enumerate(MCP)][1:]
        server.stdin.close()
        assert server.wait(60) == 0, server.stderr.read()
    texts = [answer["result"]["content"][0]["text"] for answer in said]
    assert texts[0] == "42"
    assert texts[2] == "line 2 at 4: two \xe9\nline 3 at 10: three \u20ac"


def ask(server: subprocess.Popen[str], number: int, method: str, params: dict) -> dict:
    """Send a request of JSON-RPC; return the answer."""
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    server.stdin.write(json.dumps(message) + "\n")
    server.stdin.flush()
    line = server.stdout.readline()
    assert line, server.stderr.read()
    return json.loads(line)


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_command_line_runs_code_on_a_remote_service(
    system: str, own_service, monkeypatch
) -> None:
    url, key = own_service.start()
    monkeypatch.setenv("ATOLL_API_KEY", key)
    done = run(system, COMMAND, "run", "--url", url, "-c", "print(6 * 7)")
    assert (done.stdout, done.stderr) == ("42\n", "")
    monkeypatch.setenv("ATOLL_URL", url)
    said = run(system, COMMAND, "doctor").stdout
    assert "remote: usable" in said
    assert said.count("it needs Linux") == 7


def test_what_needs_linux_says_so() -> None:
    done = run("darwin", NEED_LINUX)
    assert done.stdout == ""
    where = "Here, use a service that runs there: `atoll run --url URL`"
    *commands, backend = done.stderr.splitlines()
    assert commands == [
        f"atoll: `atoll {name}` needs Linux. {where}"
        for name in ("exec", "serve", "daemon", "doctor")
    ]
    assert "'native' cannot run here: it needs Linux" in backend
    assert "backend='remote'" in backend
