"""Writable folders at any path: policy={"folders": [...]}, cold, warm, and in live clones."""

from __future__ import annotations

import contextlib

import pytest

from atoll import ExecutionPolicy, SandboxConfig, aio, create_sandbox
from atoll.errors import ConfigError, UnsupportedError

FOLDERS = ("/logs/agent", "/tests", "/home/user", "/mnt", "/usr/local/share/of-guest")
POLICY = {"folders": FOLDERS, "disk_bytes": 8 << 20}
CONFIG = SandboxConfig(preload="bare", policy=ExecutionPolicy(**POLICY))
WRITE = f"""
import os
for folder in {FOLDERS}:
    with open(folder + "/a.txt", "w") as file:
        file.write(folder)
"""
TRY = """
refused = []
for path in ("/x", "/logs/x", "/home/x", "/usr/local/x", "/.box/x", "/etc/x"):
    try:
        open(path, "w")
    except OSError as exc:
        refused.append(exc.strerror)
try:
    open("/logs/agent/large", "wb").write(bytes(9 << 20))
except OSError as exc:
    print(exc.strerror)
os.remove("/logs/agent/large")
print(set(refused), len(refused), os.listdir("/.box"), os.path.realpath("/mnt/data"))
"""


@pytest.mark.parametrize("start", ["cold", "warm"])
async def test_folders_are_writable_nothing_else_is_and_the_disk_limit_counts_them(pool, start):
    async with contextlib.AsyncExitStack() as opened:
        if start == "warm":
            box = await opened.enter_async_context(await pool.open(CONFIG))
        else:
            made = aio.create_sandbox(backend="native", policy=POLICY)
            box = await opened.enter_async_context(made)
        done = await box.execute(WRITE + TRY)
        assert done.success, done.stderr
        assert done.stdout == "No space left on device\n{'Read-only file system'} 6 [] /app\n"
        assert (await box.files.download(["/tests/a.txt"]))[0].content == b"/tests"
        await box.files.write("/home/user/made/b.txt", "by the host\n")
        seen = await box.shell("cat /home/user/made/b.txt; ls /home", user="root")
    *said, folders = seen.output.partition("\n")  # an interpreter of a home folder is there too
    assert said[0] == "by the host"
    assert {"guest", "user"} <= {*folders.split()}


async def test_a_live_clone_has_copies_of_its_own(pool):
    async with await pool.open(CONFIG) as box:
        await box.execute(WRITE)
        async with await box.fork() as twin, await twin.fork() as third:
            for clone in (twin, third):
                done = await clone.execute("print(os.listdir('/tests')); open('/tests/b', 'w')")
                assert done.stdout == "['a.txt']\n", done.stderr
        assert (await box.execute("print(os.listdir('/tests'))")).stdout == "['a.txt']\n"


@pytest.mark.parametrize(
    "path",
    ["/", "logs", "/a/../b", "/a/", "/proc/x", "/dev/x", "/app/x", "/tmp", "/usr", "/home", 7],
)
def test_paths_that_can_be_no_folder_are_refused(path):
    with pytest.raises(ConfigError, match="folder"):
        ExecutionPolicy(folders=[path])


def test_a_folder_in_another_and_too_many_are_refused():
    with pytest.raises(ConfigError, match="is in another"):
        ExecutionPolicy(folders=["/a", "/a/b"])
    with pytest.raises(ConfigError, match="at most 32"):
        ExecutionPolicy(folders=[f"/f{number}" for number in range(33)])


def test_a_backend_without_folders_says_so():
    with pytest.raises(UnsupportedError, match="folders"):
        create_sandbox(backend="restricted", min_isolation="guarded", policy={"folders": ["/logs"]})
