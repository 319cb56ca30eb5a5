"""The native backend's own: its protocol over stdio, its interpreter, its environment, its end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll import guest
from atoll.errors import BackendUnavailableError, ConfigError
from atoll.jail.supervisor.client import supervisor
from atoll.launch import boot, interpreter
from atoll.policy import Mount
from atoll.sandbox.channel import MAX_CALL_BYTES


class RawGuest:
    """A guest without a jail, spoken to in plain JSON lines."""

    def __init__(self, folder: Path) -> None:
        self.output, write = os.pipe()
        code = f"import os; os.dup2({write}, 3); {boot._BOOT}"
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", code, str(Path(guest.__file__).parent.parent), "__main__"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(write,),
            cwd=folder,
        )
        os.close(write)

    def say(self, **message: object) -> None:
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        return json.loads(self.process.stdout.readline())

    def close(self) -> bytes:
        self.process.stdin.close()
        assert self.process.wait(10) == 0
        self.process.stdout.close()
        printed = os.read(self.output, 1000)
        os.close(self.output)
        return printed


@pytest.mark.spec("R0.18")
def test_the_guest_speaks_json_rpc_over_stdio_even_without_a_jail(tmp_path):
    raw = RawGuest(tmp_path)
    assert raw.hear()["method"] == "ready"
    raw.say(id="1", method="initialize", params={"tools": []})
    assert raw.hear() == {"jsonrpc": "2.0", "id": "1", "result": {"context_shared": False}}
    raw.say(id="2", method="execute", params={"code": "print('{}'); llm_query('hi')"})
    call = raw.hear()
    assert call["method"] == "host.call"
    assert (call["params"]["name"], call["params"]["args"]) == ("llm_query", ["hi"])
    raw.say(id=call["id"], result="there")
    answer = raw.hear()
    assert (answer["id"], answer["result"]["value"]) == ("2", "there")
    raw.say(id="3", method="nothing", params={})
    assert raw.hear()["error"]["code"] == -32601
    assert raw.close() == b"{}\n"


@pytest.mark.spec("R0.18")
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo Python 3.7.9", "is Python 3.7.9"),
        ("echo Ruby 3.3", "is not a Python: `--version` prints 'Ruby 3.3'"),
        ("exit 1", "--version` fails"),
    ],
)
def test_what_does_not_say_python_3_8_is_refused(tmp_path, script, message):
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    with pytest.raises(atoll.BackendUnavailableError, match=message):
        interpreter.resolve(str(fake))


@pytest.mark.spec("R0.18")
def test_a_venv_of_the_users_with_its_libraries(tmp_path):
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    (site / "mylib.py").write_text("ANSWER = 42")
    with atoll.create_sandbox(python=str(python)) as box:
        assert box.execute("import mylib, sys; mylib.ANSWER, sys.prefix").value == (
            42,
            str(tmp_path / "venv"),
        )
        result = box.execute("open(mylib.__file__, 'w')")
        assert result.error_type == "OSError"
        assert "Read-only file system" in result.error
        assert (
            box.execute(
                "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import mylib; print(mylib.ANSWER)'])"
            ).stdout
            == "42\n"
        )


def test_the_guest_has_a_fresh_environment_of_its_own(monkeypatch):
    monkeypatch.setenv("MY_SECRET", "s3cret")
    with atoll.create_sandbox(policy=atoll.ExecutionPolicy(env={"GIVEN": "yes"})) as box:
        found = box.execute("import os; dict(os.environ)").value
    assert found["GIVEN"] == "yes"
    assert "MY_SECRET" not in found
    assert set(found) <= {
        "PATH",
        "HOME",
        "LANG",
        "MPLBACKEND",
        "OPENBLAS_NUM_THREADS",
        "OMP_NUM_THREADS",
        "GIVEN",
        "LC_CTYPE",
    }


def test_extra_mounts_are_read_only_unless_asked(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "table.csv").write_text("a,b")
    mounts = (Mount(source=tmp_path / "data", target="/data"),)
    with atoll.create_sandbox(policy=atoll.ExecutionPolicy(mounts=mounts)) as box:
        assert box.execute("open('/data/table.csv').read()").value == "a,b"
        assert "Read-only" in box.execute("open('/data/new', 'w')").error


def test_what_a_guest_writes_into_a_writable_mount_belongs_to_the_folders_owner(tmp_path):
    """As root too, where a guest is another user than the one whose folder it is given."""
    (tmp_path / "old").write_text("1")
    with atoll.create_sandbox(policy={"mounts": [(tmp_path, "/data", True)]}) as box:
        code = "open('/data/old', 'a').write('2'); open('/data/new', 'w').write('3')"
        assert box.execute(code).error is None
        assert (
            "PermissionError"
            in box.execute("os = __import__('os'); os.chmod('/data/new', 0o4755)").error
        )
    assert [(tmp_path / name).read_text() for name in ("old", "new")] == ["12", "3"]
    assert (tmp_path / "new").stat().st_uid == os.getuid()


@pytest.mark.parametrize("target", ["relative", "/", "/a/../b", "/a/"])
def test_a_bad_mount_target_is_refused(target):
    with pytest.raises(atoll.ConfigError):
        Mount(source=Path("/usr"), target=target)


def test_a_mount_that_does_not_exist_is_a_clear_error():
    mounts = (Mount(source=Path("/no/such/thing"), target="/data"),)
    with pytest.raises(atoll.ConfigError, match="/no/such/thing"):
        atoll.create_sandbox(policy=atoll.ExecutionPolicy(mounts=mounts))


def test_a_supervisor_lost_under_a_cell_is_a_clear_error_and_is_replaced():
    with atoll.create_sandbox() as box:
        box.execute("x = 1")
        killer = threading.Timer(0.3, os.kill, (supervisor.pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(atoll.SandboxError, match="the supervisor has gone"):
            box.execute("import time; time.sleep(30)")
        assert box.execute("6 * 7").value == 42


def test_a_guest_lost_between_cells_is_replaced_and_the_result_says_so():
    with atoll.create_sandbox(context="still here") as box:
        box.execute("import os, threading\nthreading.Timer(0.1, os._exit, (0,)).start()\nx = 1")
        assert _comes_true(lambda: box.inner._guest.session.dead)
        result = box.execute("context, 'x' in globals()")
        assert (result.value, result.success, result.state_lost) == (
            ("still here", False),
            True,
            True,
        )
        assert not box.execute("1").state_lost


def test_guests_do_not_outlive_a_killed_supervisor():
    with atoll.create_sandbox() as box:
        marker = f"atoll-test-{os.getpid()}"
        box.execute(
            f"import subprocess; subprocess.Popen(['sleep', '300'], env={{'MARK': '{marker}'}})"
        )
        assert _appears(marker)
        os.kill(supervisor.pid, signal.SIGKILL)
        assert _gone(marker)


def test_nothing_outlives_a_killed_host():
    marker = f"atoll-test-host-{os.getpid()}"
    code = (
        "import atoll\nbox = atoll.create_sandbox()\n"
        f"box.execute(\"import subprocess, os; subprocess.Popen(['sleep', '300'], env={{'MARK': '{marker}'}})\")\n"
        "print('up', flush=True)\nbox.execute('while True: pass')"
    )
    host = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert host.stdout.readline() == b"up\n"
    assert _appears(marker)
    host.kill()
    host.wait()
    host.stdout.close()
    assert _gone(marker)


def test_a_fork_of_the_host_has_a_supervisor_of_its_own():
    with atoll.create_sandbox() as box:
        box.execute("x = 1")
        first = supervisor.pid
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with atoll.create_sandbox() as own:
                    status = (
                        0 if own.execute("6 * 7").value == 42 and supervisor.pid != first else 2
                    )
                supervisor.stop()
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert box.execute("x").value == 1


def _marked(marker: str) -> bool:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={marker}".encode() in (folder / "environ").read_bytes():
                return True
        except OSError:
            continue
    return False


def _appears(marker: str) -> bool:
    return _comes_true(lambda: _marked(marker))


def _gone(marker: str) -> bool:
    return _comes_true(lambda: not _marked(marker))


def _comes_true(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.long
def test_what_open_calls_hold_on_the_host_is_bounded():
    """Twenty calls of 8 MB at once: the host takes no more than its bound, and answers them all."""
    running, most = 0, 0

    async def hold(text: str) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return len(text)

    code = """
import concurrent.futures
with concurrent.futures.ThreadPoolExecutor(20) as pool:
    answers = list(pool.map(hold, ["x" * 8_000_000] * 20))
answers == [8_000_000] * 20
"""
    policy = atoll.ExecutionPolicy(memory_bytes=2 << 30)
    with atoll.create_sandbox(backend="native", tools={"hold": hold}, policy=policy) as box:
        assert box.execute(code).value is True
    assert most <= MAX_CALL_BYTES // 8_000_000 + 2


@pytest.mark.spec("R3.1")
def test_a_command_is_logged_without_its_words_above_debug():
    events = []
    with atoll.create_sandbox(backend="native", logger=atoll.SandboxLogger(events.append)) as box:
        box.shell("echo secret; exit 3")
    start, code, end = events
    assert (start.name, start.fields["runtime"]) == ("execution_start", "shell")
    assert (code.level, code.fields["code"]) == (logging.DEBUG, "echo secret; exit 3")
    assert (end.name, end.level) == ("shell_complete", logging.INFO)
    assert end.fields == {"exit_code": 3, "truncated": False, "error": None}


async def test_an_interrupt_that_comes_late_does_not_hit_the_next_cell():
    async with atoll.aio.create_sandbox(backend="native") as box:
        await box.execute("import time; x = 1")
        lease, box._guest.session.grace_seconds = box._guest.lease, 10
        at_once, loop = lease.interrupt, asyncio.get_running_loop()
        lease.interrupt = lambda: loop.call_later(0.3, at_once)
        first = await box.execute("time.sleep(0.15); x", timeout_ms=50)
        lease.interrupt = at_once
        second = await box.execute("time.sleep(0.5); x")
        assert (first.value, second.value) == (1, 1), (first, second)


@pytest.mark.parametrize("prefix", ["/opt/atoll", "/opt/atoll/venv", "/opt"])
def test_python_where_the_guest_s_own_code_is_put_is_refused_with_words(prefix):
    with pytest.raises(BackendUnavailableError, match="such as /srv/atoll"):
        interpreter._outermost({prefix})
    assert interpreter._outermost({"/opt/atoll2"}) == ("/opt/atoll2",)


def test_a_tier_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(
        ConfigError, match=r"no tier 'nope' to preload: .* bare, numeric, full, packages"
    ):
        atoll.create_sandbox(backend="native", preload="nope")


def test_too_few_open_files_are_refused_with_the_least():
    few = {"max_open_files": 23}
    with pytest.raises(ConfigError, match="must be at least 24, not 23: starting Python"):
        atoll.create_sandbox(backend="native", policy=few)
    with atoll.create_sandbox(backend="native", policy={"max_open_files": 24}) as box:
        assert box.execute("open('a', 'w').close(); 6 * 7").value == 42


def test_a_session_that_has_the_stand_in_of_ipython_starts_processes(tmp_path):
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    code = (
        "import multiprocessing\n"
        "from IPython.display import HTML, display\n"
        "def double(x): return 2 * x\n"
        "with multiprocessing.get_context('spawn').Pool(1) as pool: found = pool.map(double, [21])\n"
        "found"
    )
    python = str(tmp_path / "bare" / "bin" / "python")
    with atoll.create_sandbox(backend="native", python=python) as box:
        result = box.execute(code)
        assert result.value == [42], result.stderr
