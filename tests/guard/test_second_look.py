"""What stands behind the guard, tried without it: audit events."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
from atoll.backends.restricted.audit import Auditor
kind, folder, tries = json.loads(sys.argv[1])
secret = folder + "/secret"
if kind == "audit":
    Auditor().arm()
done = []
for name, code in tries.items():
    try: eval(code)
    except OSError: continue
    done.append(name)
print(json.dumps(done))
"""


@pytest.mark.parametrize("kind", ["audit", "nothing"])
def test_code_that_got_past_the_guard_does_not_get_far(tmp_path, kind):
    (tmp_path / "secret").write_text("x")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([kind, str(tmp_path), TRIES])],
        capture_output=True,
        text=True,
        timeout=60,
    )
    through = json.loads(done.stdout)
    if kind == "nothing":  # so that what is tried could have been done
        assert set(TRIES) - set(through) <= {"socket"}
    else:
        assert through == []
    assert kind == "nothing" or not (tmp_path / "written").exists()
