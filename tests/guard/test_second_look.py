"""What stands behind the guard, tried without it: audit events, and the kernel where it can."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from atoll.jail.walls import syscalls

TRIES = {
    "read": "open(secret).read()",
    "write": "open(folder + '/written', 'w')",
    "list": "os.listdir(folder)",
    "command": "subprocess.run(['true'], check=True)",
    "fork": "os.fork() or os._exit(0)",
    "socket": "socket.create_connection(('127.0.0.1', 9))",
    "kill": "os.kill(os.getppid(), 0)",
    "chmod": "os.chmod(secret, 0o777)",
}
SCRIPT = """
import ctypes, json, os, socket, subprocess, sys
from atoll.backends.restricted import walls
from atoll.backends.restricted.audit import Auditor
kind, folder, tries = json.loads(sys.argv[1])
secret = folder + "/secret"
if kind == "audit":
    Auditor(walls.folders()).arm()
else:
    walls.build(walls.folders())
done = []
for name, code in tries.items():
    try: eval(code)
    except OSError: continue
    done.append(name)
print(json.dumps(done))
"""


@pytest.mark.parametrize("kind", ["audit", "kernel", "nothing"])
def test_code_that_got_past_the_guard_does_not_get_far(tmp_path, kind):
    if kind == "kernel" and not syscalls.landlock_version():
        pytest.skip("this kernel has no Landlock")
    (tmp_path / "secret").write_text("x")
    script = SCRIPT.replace("walls.build(walls.folders())", "pass") if kind == "nothing" else SCRIPT
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps([kind, str(tmp_path), TRIES])],
        capture_output=True,
        text=True,
        timeout=60,
    )
    through = json.loads(done.stdout)
    if kind == "nothing":  # so that what is tried could have been done
        assert set(TRIES) - set(through) <= {"socket"}
    else:
        assert set(through) <= ({"chmod"} if kind == "kernel" else set())
    assert kind == "nothing" or not (tmp_path / "written").exists()
