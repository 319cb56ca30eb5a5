"""gVisor started by a user who is not root: the same sessions, and each limit is hit."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from ordinary_user import python_for_user, run_as_user

pytestmark = [
    pytest.mark.usefixtures("gvisor_here"),
    pytest.mark.skipif(os.geteuid() != 0, reason="all tests run as an ordinary user already"),
]
SCRIPT = """
import json, atoll
from atoll.backends.gvisor import sandbox
sandbox.parked.most = 0
MIB = 1 << 20
policy = dict(memory_bytes=192 * MIB, disk_bytes=8 * MIB, file_size_bytes=MIB, max_processes=20)
found = {}
with atoll.create_sandbox(
    min_isolation="kernel", policy=policy, context="c" * MIB, tools={"add": lambda a, b: a + b}
) as box:
    def run(name, code, **options):
        result = box.execute(code, **options)
        found[name] = [result.kind.value, result.value, result.error_type, result.state_lost]
    found["level"] = str(box.isolation)
    run("bridge", "x = add(40, 2); x, len(context)")
    run("time", "while True: pass", timeout_ms=500)
    run("kept", "import os; x, os.getuid()")
    found["shell"] = box.shell("echo $((6 * 7)); exit 3").exit_code
    run("memory", "b = bytearray(300 << 20)")
    run("file", "open('big', 'wb').write(bytes(2 << 20))")
    run("disk", "for n in range(16): open(f'f{n}', 'wb').write(bytes(1 << 20))")
    run("network", "import socket; socket.create_connection(('192.0.2.1', 80), 1)")
    run("processes", "for n in range(40):\\n    if os.fork() == 0:\\n        import time; time.sleep(9); os._exit(0)")
    found["files"] = box.files.upload([("up", b"x")])[0].error
print(json.dumps(found))
"""
MEMORY = """
import json, sys, atoll
from atoll.backends.gvisor import sandbox
sandbox.parked.most = 0
folder, cells = sys.argv[1], json.loads(sys.argv[2])
policy = atoll.ExecutionPolicy(memory_bytes=128 << 20, mounts=[(folder, "/data")])
found = {}
with atoll.create_sandbox(
    backend="gvisor", policy=policy, context="c" * (200 << 20), timeout_ms=60_000
) as box:
    for name, code in cells.items():
        result = box.execute(code)
        found[name] = [result.kind.value, result.value]
print(json.dumps(found))
"""
WITHIN = {
    "context": "sum(map(ord, context[::4096])) // ord('c')",
    "file": "file = open('/data/large', 'rb'); sum(iter(lambda: len(file.read(1 << 20)), 0))",
}
TOO_MUCH = {
    "processes": """
import os, time
for n in range(5):
    if os.fork() == 0:
        held = bytes([1]) * (60 << 20)
        time.sleep(99)
""",
    "a limit lifted": """
import mmap, resource
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
held = mmap.mmap(-1, 400 << 20)
for n in range(0, len(held), 4096):
    held[n] = 1
""",
    "buffers of the kernel": """
import fcntl, os
held = [os.pipe() for n in range(400)]
for read, write in held:
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(write, bytes(1 << 20))
""",
}
WAIT = "\nimport time; time.sleep(60)"


@pytest.fixture
def open_folder():
    """A folder that any user may look into."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_sessions_and_limits_without_root():
    done = run_as_user(python_for_user(), "-c", SCRIPT, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert (found["level"], found["shell"]) == ("kernel", 3)
    assert found["bridge"][:2] == ["ok", [42, 1 << 20]]
    assert (found["time"][0], found["time"][3]) == ("timeout", False)
    assert found["kept"][1] == [42, 1000]
    assert found["memory"][2] == "MemoryError"
    assert (found["file"][2], found["disk"][2]) == ("OSError", "OSError")
    assert found["processes"][2] == "BlockingIOError"
    assert found["network"][0] == "error"


@pytest.mark.long
@pytest.mark.spec("R3.1")
def test_memory_of_all_processes_is_limited_without_control_groups(open_folder):
    large = open_folder / "large"
    large.touch()
    os.truncate(large, 300 << 20)
    cells = WITHIN | {name: code + WAIT for name, code in TOO_MUCH.items()} | {"after": "6 * 7"}
    done = run_as_user(python_for_user(), "-c", MEMORY, str(open_folder), json.dumps(cells))
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert [found[name][0] for name in TOO_MUCH] == ["memory"] * len(TOO_MUCH)
    within = [found[name] for name in (*WITHIN, "after")]
    assert within == [["ok", 200 << 20 >> 12], ["ok", 300 << 20], ["ok", 42]]
