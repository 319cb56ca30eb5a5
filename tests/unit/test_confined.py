"""The lower level, for hosts without user namespaces: Landlock, seccomp, rlimits, and it says so.

That this host has none is made up for these tests; the confinement is real.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import atoll
from atoll.jail.measure import probe
from atoll.jail.walls import syscalls
from atoll.policy import Isolation

pytestmark = pytest.mark.skipif(
    not syscalls.landlock_version(), reason="this kernel has no Landlock, so no such level"
)


UNLIMITED = atoll.ExecutionPolicy(disk_bytes=None, max_processes=None)
"""What nothing counts where there are neither namespaces nor control groups."""


@pytest.fixture
def confined(monkeypatch):
    report = probe.HostReport(
        level=Isolation.CONFINED,
        failure="made up",
        landlock=syscalls.landlock_version(),
        cgroup_version=None,
        switches_user=False,
    )
    monkeypatch.setattr(probe, "_cached", report)
    box = atoll.create_sandbox(
        min_isolation="confined",
        policy=UNLIMITED,
        timeout_ms=10_000,
        context="c" * 100_000,
    )
    yield box
    box.destroy()


def test_it_says_what_it_is_and_works(confined):
    result = confined.execute("import json, asyncio, threading\nlen(context)")
    assert (result.value, result.isolation, confined.isolation) == (
        100_000,
        Isolation.CONFINED,
        Isolation.CONFINED,
    )
    assert confined.execute("open('a.txt', 'w').write('x')").files_created == ("a.txt",)


def test_its_state_is_saved_and_restored(confined):
    assert confined.execute("def f(): return v\nv = 5\nopen('a.txt', 'w').write('x')").success
    blob = confined.save()
    with atoll.create_sandbox(min_isolation="confined", policy=UNLIMITED, state=blob) as box:
        assert box.isolation is Isolation.CONFINED
        assert box.execute("f(), open('a.txt').read()").value == (5, "x")


@pytest.mark.parametrize(
    ("code", "error_type"),
    [
        ("open('/etc/passwd')", "PermissionError"),
        (f"open({str(Path(__file__).resolve())!r})", "PermissionError"),
        ("import os; os.listdir('/')", "PermissionError"),
        ("import os; os.fork()", "PermissionError"),
        ("import os; os.kill(os.getppid(), 0)", "PermissionError"),
        ("import socket; socket.socket()", "OSError"),
        ("import os; open(f'/proc/{os.getppid()}/environ', 'rb').read()", "PermissionError"),
        ("import json; open(json.__file__, 'a')", "PermissionError"),
    ],
)
def test_what_it_keeps_in(confined, code, error_type):
    assert confined.execute(code).error_type == error_type
    assert confined.execute("1").value == 1


def test_a_loop_is_interrupted_and_then_killed(confined):
    confined.execute("x = 1")
    session = confined.inner._guest.session
    usual, session.grace_seconds = session.grace_seconds, 10
    assert confined.execute("while True: pass", timeout_ms=300).kind == "timeout"
    assert confined.execute("x").value == 1
    session.grace_seconds = usual
    stubborn = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    assert confined.execute(stubborn, timeout_ms=300).state_lost
    assert confined.execute("1").value == 1


def test_a_second_sandbox_answers_while_the_first_is_busy(confined):
    import threading

    cell = threading.Thread(
        target=confined.execute, args=("while True: pass",), kwargs={"timeout_ms": 2000}
    )
    cell.start()
    with atoll.create_sandbox(min_isolation="confined", policy=UNLIMITED) as other:
        assert other.execute("6 * 7").value == 42
    cell.join()


def test_its_private_folder_is_removed_whatever_is_in_it(confined):
    folder = confined.execute(
        "import os\nos.makedirs('a/b/c'); open('a/b/c/f', 'w').close()\n"
        "for p in ('a/b/c', 'a/b', 'a'): os.chmod(p, 0)\nos.getcwd()"
    ).value
    assert os.path.isdir(folder)
    confined.destroy()
    assert not os.path.exists(folder)


def test_memory_is_limited(confined):
    assert confined.execute("b = bytearray(900 << 20)").error_type == "MemoryError"


@pytest.mark.spec("R3.11")
def test_there_is_no_shell_where_no_process_can_be_started(confined):
    confined.execute("x = 'kept'")
    with pytest.raises(
        atoll.UnsupportedError, match="cannot run a shell where it is only confined"
    ):
        confined.shell("true")
    assert confined.execute("x").value == "kept"
