"""macOS and Windows: what reaches a remote Atoll imports no module that only Linux has."""

from __future__ import annotations

import subprocess
import sys

import pytest

HIDDEN = "fcntl resource pwd grp termios pty tty syslog posix_spawn _posixsubprocess".split()
HIDE = f"""
import asyncio, json, signal, socket, subprocess, sys, os  # what they need, they have elsewhere
for name in {HIDDEN!r}:
    sys.modules[name] = None
for name in ("pidfd_open", "memfd_create", "fork", "geteuid", "getuid", "O_PATH",
             "MFD_CLOEXEC", "MFD_ALLOW_SEALING", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGCHLD", "SIGKILL", "SIGHUP", "SIGUSR1", "SIGWINCH", "pidfd_send_signal"):
    if hasattr(signal, name):
        delattr(signal, name)
for name in ("SCM_RIGHTS", "SO_PEERCRED"):
    if hasattr(socket, name):
        delattr(socket, name)

import types, urllib.request
proxies = types.SimpleNamespace(_get_proxy_settings=dict, _get_proxies=dict)
sys.modules["_scproxy"] = proxies  # of macOS, which says which proxies are set
sys.platform = "darwin"
"""
OPEN_REMOTE = """
import atoll
try:
    atoll.create_sandbox(backend="remote", url="http://127.0.0.1:9", api_key="k")
except atoll.AtollError as exc:
    print(type(exc).__name__)
loaded = [name for name in sys.modules if name.startswith(("atoll.jail", "atoll.launch"))]
print(loaded)
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code where the modules, signals and flags of Linux are missing."""
    command = [sys.executable, "-c", HIDE + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_remote_sandbox_is_asked_for_without_a_module_of_linux() -> None:
    done = run(OPEN_REMOTE)
    assert done.stderr == ""
    name, loaded = done.stdout.splitlines()
    assert name in {"SandboxLostError", "SandboxStartError", "BackendUnavailableError"}
    assert loaded == "[]"


@pytest.mark.parametrize("module", ["atoll", "atoll.aio", "atoll.factory", "atoll.backends.remote"])
def test_a_module_for_remote_use_is_imported(module: str) -> None:
    done = run(f"import {module}")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_line_reaches_for_a_remote_service() -> None:
    code = "os.environ['ATOLL_API_KEY'] = 'k'\nfrom atoll.cli.main import main\n"
    code += "sys.exit(main(sys.argv[1:]))"
    done = run(code, "run", "--url", "http://127.0.0.1:9", "-c", "print(1)")
    assert "Traceback" not in done.stderr
    assert "127.0.0.1:9" in done.stderr


def test_a_local_backend_says_that_it_needs_linux() -> None:
    done = run(
        "import atoll\ntry: atoll.create_sandbox(backend='native')\n"
        "except atoll.AtollError as exc: print(exc)"
    )
    assert "needs Linux" in done.stdout
    assert "backend='remote'" in done.stdout
