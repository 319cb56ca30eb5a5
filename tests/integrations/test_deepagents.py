"""What AtollSandbox is beyond deepagents' own suite: paths, time, cancellation, ownership."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys

import pytest

import atoll
from atoll import Capability
from atoll.backends import registry
from atoll.integrations.deepagents import AtollSandbox

SHELLS = [one for one in registry.names() if Capability.SHELL in registry.load(one).capabilities]
on_each = pytest.mark.parametrize("backend", SHELLS, indirect=True)


@pytest.fixture
def sandbox(box):
    """On every backend that has a shell, around a sandbox that is open already."""
    return AtollSandbox(box)


PLACES = [
    "/app/a.txt",
    "/mnt/data/new/folder/b.txt",
    "/tmp/a b'c$(id)`id`.txt",
    "/home/guest/c.txt",
    "/dev/shm/new/d.txt",
    "/app/../tmp/e.txt",
    "//app//f.txt",
]
CODES = {
    "relative.txt": ("invalid_path", "invalid_path"),
    "": ("invalid_path", "invalid_path"),
    "/app/a\0b": ("invalid_path", "invalid_path"),
    "/app/\ud800": ("invalid_path", "invalid_path"),
    "/" + "a" * 5000: ("invalid_path", "invalid_path"),
    "/etc/passwd/x": ("invalid_path", "file_not_found"),
    "/app": ("is_directory", "is_directory"),
    "/usr": ("is_directory", "is_directory"),
    "/etc/none": ("permission_denied", "file_not_found"),
    "/none/none": ("permission_denied", "file_not_found"),
    "/app/none/../../etc/none": ("permission_denied", "file_not_found"),
    "/tmp/locked/x": ("permission_denied", "permission_denied"),
    "/dev/shm/locked/x": ("permission_denied", "permission_denied"),
    "/dev/shm/unreadable": (None, "permission_denied"),
    "/dev/shm/fifo": ("invalid_path", "invalid_path"),
    "/tmp/fifo": (None, None),  # it is replaced
}
"""What an upload says, and then a download."""


@on_each
@pytest.mark.parametrize("size", [0, 3, 2_000_000])
def test_a_file_goes_where_the_guest_sees_it(sandbox, size):
    data = os.urandom(size)
    for path in PLACES:
        done = sandbox.upload_files([(path, b"old"), (path, data)])
        assert [one.error for one in done] == [None, None], path
        assert sandbox.execute(f"wc -c < {shlex.quote(path)}").output == f"{size}\n"
        assert sandbox.download_files([path])[0].content == data, path
    assert sandbox.execute("find /tmp -name '.atoll-*' 2>/dev/null").output == ""


@on_each
def test_what_cannot_be_had_has_the_code_of_its_reason(sandbox):
    sandbox.execute(
        "mkdir /tmp/locked /dev/shm/locked; chmod 000 /tmp/locked /dev/shm/locked;"
        "mkfifo /tmp/fifo /dev/shm/fifo;"
        "echo secret > /dev/shm/unreadable; chmod 200 /dev/shm/unreadable"
    )
    found = {
        path: (
            sandbox.upload_files([(path, b"x")])[0].error,
            sandbox.download_files([path])[0].error,
        )
        for path in CODES
    }
    assert found == CODES
    assert sandbox.execute("find /tmp -name '.atoll-*' 2>/dev/null").output == ""


@on_each
def test_a_link_out_of_a_folder_leads_where_it_leads_in_the_guest(sandbox):
    sandbox.execute("ln -s /etc/passwd /app/users; ln -s /dev/shm /app/shm")
    assert b"guest" in sandbox.download_files(["/app/users"])[0].content
    assert sandbox.upload_files([("/app/shm/a.txt", b"1")])[0].error is None
    assert sandbox.execute("cat /dev/shm/a.txt").output == "1"


@on_each
def test_one_bad_file_does_not_keep_the_others_from_their_places(sandbox):
    files = [("/app/a", b"1"), ("b", b"2"), ("/etc/c", b"3"), ("/dev/shm/d", b"4")]
    put = [(one.path, one.error) for one in sandbox.upload_files(files)]
    assert put == [
        ("/app/a", None), ("b", "invalid_path"), ("/etc/c", "permission_denied"), ("/dev/shm/d", None),
    ]  # fmt: skip
    got = sandbox.download_files(["/dev/shm/d", "/etc/c", "/app/a"])
    assert [one.content for one in got] == [b"4", None, b"1"]
    assert all(type(one.error) in (str, type(None)) for one in got)


@on_each
def test_a_command_that_is_ended_says_why_and_the_session_lives_on(sandbox, box):
    box.execute("x = 41")
    done = sandbox.execute("echo begun; sleep 1000", timeout=1)
    assert done.output == "begun\nthe command took longer than 1000 ms and was ended"
    assert done.exit_code == 124
    assert sandbox.execute("printf begun; exit 3").output == "begun"
    assert box.execute("x + 1").value == 42


@on_each
def test_the_default_timeout_is_in_seconds_too_and_zero_is_the_sandbox_s_own(box):
    sandbox = AtollSandbox(box, timeout=0.5)
    assert "longer than 500 ms" in sandbox.execute("sleep 1000").output
    assert sandbox.execute("sleep 1", timeout=0).exit_code == 0


@on_each
@pytest.mark.parametrize(("command", "why"), [("", "is empty"), ("a\0b", "zero byte")])
def test_a_command_that_no_shell_takes_is_told_to_the_model(sandbox, command, why):
    done = sandbox.execute(command)
    assert done.output.startswith("Error: the command ")
    assert why in done.output
    assert done.exit_code == 2


@on_each
async def test_async_calls_go_on_side_by_side_and_cost_no_thread(sandbox, own_service, monkeypatch):
    to_thread = asyncio.to_thread

    def refuse(*work):
        """The service of the tests, which is in this process, may have its threads."""
        if asyncio.get_running_loop() is getattr(own_service, "loop", None):
            return to_thread(*work)
        raise AssertionError("a thread was asked for")

    monkeypatch.setattr(asyncio, "to_thread", refuse)
    wait = "until [ -e /tmp/go ]; do sleep 0.01; done; cat /tmp/go"
    waiting = asyncio.create_task(sandbox.aexecute(wait))
    assert (await sandbox.aupload_files([("/tmp/go", b"went")]))[0].error is None
    assert (await waiting).output == "went"
    assert (await sandbox.adownload_files(["/tmp/go"]))[0].content == b"went"
    assert (await sandbox.awrite("/app/a.txt", "one\n")).error is None
    assert (await sandbox.aedit("/app/a.txt", "one", "two")).occurrences == 1
    assert (await sandbox.agrep("two", "/app")).matches[0]["line"] == 1
    assert len((await sandbox.als("/app")).entries) == 1


@on_each
async def test_a_command_ends_with_the_task_that_asked_for_it(sandbox):
    asking = asyncio.create_task(sandbox.aexecute("echo $$ > /tmp/pid; exec sleep 1000"))
    while not (await sandbox.adownload_files(["/tmp/pid"]))[0].content:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await sandbox.aexecute("kill -0 $(cat /tmp/pid)")).exit_code == 1


@on_each
def test_a_sandbox_that_was_given_stays_open(box):
    with AtollSandbox(box) as one, AtollSandbox(box) as other:
        assert one.id != other.id
    assert box.shell("echo here").output == "here\n"


def test_a_sandbox_of_its_own_ends_with_it():
    with AtollSandbox(backend="native") as sandbox:
        assert sandbox.id.startswith("atoll-native-")
        assert sandbox.execute("id -u; hostname").output == "1000\natoll\n"
    with pytest.raises(atoll.SandboxClosedError):
        sandbox.execute("true")
    sandbox.close()


async def test_async_code_lets_go_of_it_too():
    async with AtollSandbox() as sandbox:
        assert (await sandbox.aexecute("hostname")).output == "atoll\n"
    with pytest.raises(atoll.SandboxClosedError):
        await sandbox.aexecute("true")
    await sandbox.aclose()


def test_a_backend_without_a_shell_is_refused_before_it_starts():
    with pytest.raises(atoll.UnsupportedError) as caught:
        AtollSandbox(backend="wasm")
    assert (
        str(caught.value)
        == "backend 'wasm' cannot run shell commands. Use backend='native' or 'daemon'."
    )
    with (
        atoll.create_sandbox(backend="restricted") as box,
        pytest.raises(atoll.UnsupportedError, match="Use backend='native'"),
    ):
        AtollSandbox(box)


def test_auto_takes_no_backend_without_a_shell(monkeypatch):
    monkeypatch.setattr("atoll.backends.registry.AUTO_ORDER", ("wasm", "native"))
    with AtollSandbox() as sandbox:
        assert sandbox.id.startswith("atoll-native-")
    monkeypatch.setattr("atoll.backends.registry.AUTO_ORDER", ("wasm", "pyodide"))
    with pytest.raises(atoll.IsolationError, match=r"wasm: it cannot .*\n  pyodide: it cannot"):
        AtollSandbox()


@pytest.mark.parametrize(
    ("options", "why"),
    [({"timeout": 0}, "timeout"), ({"timeout": -1}, "timeout"), ({"colour": "red"}, "'colour'")],
)
def test_options_that_make_no_sense_are_refused(options, why):
    with pytest.raises(atoll.ConfigError, match=why):
        AtollSandbox(**options)


def test_an_open_sandbox_takes_no_options():
    with atoll.create_sandbox(backend="native") as box, pytest.raises(atoll.ConfigError) as caught:
        AtollSandbox(box, backend="native")
    assert str(caught.value) == (
        "leave out backend: it is for a new sandbox, and `box` is one already"
    )


def test_without_deepagents_the_import_says_what_to_type():
    code = "import sys; sys.modules['deepagents'] = None; import atoll.integrations.deepagents"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("-m pip install 'deepagents>=0.6.12'")
