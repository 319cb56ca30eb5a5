"""A host that forks: a sandbox stays its parent's, and the child is told so instead of waiting."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORKS = """
import os, sys, atoll
box = atoll.create_sandbox(backend="native")
box.execute("x = 1")
pid = os.fork()
if pid == 0:
    uses = {
        "execute": lambda: box.execute("x"),
        "get_variable": lambda: box.get_variable("x"),
        "files": lambda: box.files.ls("/app"),
        "fork": lambda: box.fork(),
        "cancel": lambda: box.cancel(),
    }
    for name, use in uses.items():
        try:
            use()
        except atoll.SandboxLostError as exc:
            assert "forked" in str(exc), exc
            continue
        os._exit(2)
    box.destroy()
    with atoll.create_sandbox(backend="native") as own:
        os._exit(0 if own.execute("6 * 7").value == 42 else 3)
_, status = os.waitpid(pid, 0)
assert box.execute("x").value == 1, "the parent's is untouched"
box.destroy()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.spec("R0.20")
def test_a_blocking_sandbox_used_after_a_fork_raises():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
