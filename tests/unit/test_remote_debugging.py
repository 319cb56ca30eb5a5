"""Python's remote debugging (3.14 and newer): no code gets into a supervisor or out of a jail."""

from __future__ import annotations

import subprocess
import sys

import pytest

import atoll
from atoll.jail.supervisor.client import supervisor

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="this Python has no remote debugging"
)
WAIT = "import sys, time; print('ready', flush=True)\nwhile True: time.sleep(0.01)"


def inject(pid: int, script) -> None:
    sys.remote_exec(pid, str(script))  # type: ignore[attr-defined]


@pytest.fixture
def script(tmp_path):
    """A script that says that it ran."""
    path = tmp_path / "step.py"
    path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nimport os; os._exit(7)")
    return path


def test_a_debugger_runs_code_in_an_ordinary_process(script):
    """What the other tests refuse does happen elsewhere."""
    with subprocess.Popen([sys.executable, "-c", WAIT], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            try:
                inject(process.pid, script)
            except PermissionError:
                pytest.skip("this user may debug no process here")
            assert process.wait(30) == 7
        finally:
            process.kill()
    assert (script.parent / "ran").exists()


def test_the_supervisor_runs_no_code_of_a_debugger(script):
    with atoll.create_sandbox(backend="native") as box:
        box.execute("x = 1")
        with pytest.raises((RuntimeError, PermissionError)):
            inject(supervisor.pid, script)
        assert box.execute("x").value == 1
        with atoll.create_sandbox(backend="native") as other:  # it has had something to do
            assert other.execute("2").value == 2
    assert not (script.parent / "ran").exists()
