"""What a jail has used, as the host reads it: from a control group's files, or from /proc."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ordinary_user import python_for_user, run_as_user

from atoll.jail.measure.cgroup import Cgroup
from atoll.jail.measure.usage import JailUsage, ProcessUsage

WORKS = """
import sys
print(flush=True)
sys.stdin.readline()
held = b"x" * (30 << 20)
del held
for _ in range(3_000_000): pass
print(flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def worker():
    """A process that waits, works when it is told to, and waits again."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WORKS], text=True, **pipes) as process:
        process.stdout.readline()
        yield process
        process.kill()


def work(process):
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()


def test_without_a_control_group_memory_and_its_peak_are_one_measure(worker):
    usage = ProcessUsage(worker.pid)
    work(worker)
    assert usage.memory() <= usage.peak_memory() - (20 << 20)
    assert usage.peak_memory() < 60 << 20, "what it held before is not counted"


GIVES_BACK = """
first = b"x" * (60 << 20)
print(flush=True); input()
del first
held = b"x" * (40 << 20)
print(flush=True); input()
"""


def test_memory_that_a_runtime_gave_back_before_the_guest_took_it_counts():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", GIVES_BACK], text=True, **pipes) as process:
        process.stdout.readline()
        usage = JailUsage({"pid": process.pid})
        usage.cpu_seconds()
        work(process)
        assert usage.peak_memory() >= usage.memory() >= 40 << 20
        process.kill()


@pytest.mark.parametrize(
    ("version", "files"),
    [
        (1, {"cpuacct.usage": "1500000000\n", "memory.max_usage_in_bytes": "4096\n"}),
        (2, {"cpu.stat": "usage_usec 1500000\nuser_usec 7\n", "memory.peak": "4096\n"}),
    ],
)
def test_a_control_group_is_read(tmp_path, version, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    group = Cgroup(version, dict.fromkeys(("memory", "pids", "cpuacct"), tmp_path))
    usage = JailUsage(group.usage_source())
    assert (usage.cpu_seconds(), usage.peak_memory()) == (1.5, 4096)
    cpu = next(iter(files))
    (tmp_path / cpu).write_text(files[cpu].replace("15", "25"))
    assert usage.cpu_seconds() == 2.5
    before = len(os.listdir("/proc/self/fd"))
    usage.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2
    assert (usage.cpu_seconds(), usage.peak_memory()) == (None, None)


def test_what_a_control_group_does_not_count_is_read_from_the_process(tmp_path, worker):
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\n")
    source = Cgroup(2, dict.fromkeys(("memory", "pids"), tmp_path)).usage_source()
    usage = JailUsage({**source, "pid": worker.pid})
    assert usage.cpu_seconds() == 1.5
    assert usage.peak_memory() < 10 << 20


def test_a_process_is_read_where_there_is_no_control_group(worker):
    usage = JailUsage({"pid": worker.pid})
    before = usage.cpu_seconds()
    assert usage.peak_memory() < 10 << 20
    work(worker)
    assert usage.cpu_seconds() - before > 0.02
    assert usage.peak_memory() >= 30 << 20, "the peak, though it is freed"


def test_children_that_were_waited_for_count():
    usage = ProcessUsage(os.getpid())
    before = usage.cpu_seconds()
    subprocess.run([sys.executable, "-S", "-c", "for _ in range(3_000_000): pass"], check=True)
    assert usage.cpu_seconds() - before > 0.02


@pytest.mark.parametrize("source", [{}, {"pid": 0}, {"pid": 1 << 22}, {"files": {"cpu": "/none"}}])
def test_nothing_is_made_up(source):
    usage = JailUsage(source)
    assert (usage.cpu_seconds(), usage.peak_memory()) == (None, None)


AS_USER = """
import asyncio, atoll
async def main():
    async with atoll.Pool() as pool:
        cold = await atoll.aio.create_sandbox(backend="native")
        warm = await pool.open(atoll.SandboxConfig(preload="bare"))
        twin = await warm.fork()
        for box in (cold, warm, twin):
            result = await box.execute("x = b'x' * (40 << 20)\\nfor _ in range(1_000_000): pass")
            assert result.success, result
            assert 40 << 20 <= result.memory_used_bytes < 200 << 20, result.memory_used_bytes
            assert 10 < result.cpu_ms < 10_000, result.cpu_ms
            await box.destroy()
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="all tests run as an ordinary user already")
def test_an_ordinary_user_gets_figures_too():
    """Without control groups: of a cold guest, a warm one, and its live clone."""
    done = run_as_user(python_for_user(), "-c", AS_USER, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
