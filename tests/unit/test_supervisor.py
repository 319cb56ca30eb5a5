"""The supervisor and its client: shared by threads, lost at any moment, and clear about failures."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import atoll
from atoll.backends.native import sandbox
from atoll.jail.supervisor import client, packets
from atoll.jail.supervisor import spec as specs
from atoll.jail.supervisor.client import Lease, supervisor
from atoll.jail.supervisor.main import Supervisor
from atoll.jail.supervisor.spec import Bind, JailSpec, Limits
from atoll.launch import interpreter
from atoll.policy import Isolation, Mount

THREADS, SANDBOXES = 4, 3
LIMITS = Limits(memory=1 << 29, processes=16, disk=1 << 20, file_size=None, open_files=256)


def spec(**changes) -> JailSpec:
    fields = {"argv": ("/bin/true",), "binds": (), "workspace": None, "limits": LIMITS}
    return JailSpec(jailed=True, env={}, **(fields | changes))


async def failure(wanted: JailSpec) -> atoll.SandboxStartError:
    """Ask the supervisor for a jail that cannot be, and hand back what it says."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        lease = client.request(wanted, [null] * 4)
        with pytest.raises(atoll.SandboxStartError) as caught:
            await lease.ended
        return caught.value
    finally:
        os.close(null)


def test_event_loops_of_several_threads_share_one_supervisor():
    with atoll.create_sandbox():
        pid = supervisor.pid
    answers: list[int] = []
    failures: list[BaseException] = []

    async def use(number: int) -> None:
        async with atoll.aio.create_sandbox() as box:
            await box.execute(f"x = {number}")
            answers.append((await box.execute("x")).value)

    async def work(thread: int) -> None:
        await asyncio.gather(*(use(10 * thread + number) for number in range(SANDBOXES)))

    def in_thread(thread: int) -> None:
        try:
            asyncio.run(work(thread))
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=in_thread, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    wanted = [10 * thread + number for thread in range(THREADS) for number in range(SANDBOXES)]
    assert sorted(answers) == wanted
    assert supervisor.pid == pid


async def test_a_start_whose_supervisor_is_killed_goes_on_with_another():
    async with atoll.aio.create_sandbox():
        pass
    for delay in (0.0, 0.002, 0.005, 0.01):
        others = _children(supervisor.pid)
        opening = asyncio.ensure_future(_open())
        while _children(supervisor.pid) == others and not opening.done():  # noqa: ASYNC110 - the kernel's
            await asyncio.sleep(0)
        await asyncio.sleep(delay)
        assert not opening.done()
        os.kill(supervisor.pid, signal.SIGKILL)
        box = await opening
        assert (await box.execute("6 * 7")).value == 42
        await box.destroy()


async def test_a_supervisor_whose_leases_closed_before_its_process_ended_is_replaced():
    async with atoll.aio.create_sandbox():
        pass
    first = supervisor.pid
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lease = Lease(ours)
    theirs.close()
    with pytest.raises(atoll.SandboxLostError, match="the supervisor has gone"):
        await lease.ended
    threading.Timer(0.05, os.kill, (first, signal.SIGKILL)).start()
    async with atoll.aio.create_sandbox() as box:
        assert (await box.execute("6 * 7")).value == 42
    assert supervisor.pid != first


async def test_a_supervisor_that_is_about_to_end_is_replaced_at_once():
    """Its socket is gone before its process is: that is no reason to fail."""
    async with atoll.aio.create_sandbox():
        pass
    os.kill(supervisor.pid, signal.SIGSTOP)
    first = supervisor.pid
    supervisor._control.shutdown(2)
    threading.Timer(0.2, os.kill, (first, signal.SIGCONT)).start()
    async with atoll.aio.create_sandbox() as box:
        assert (await box.execute("6 * 7")).value == 42
    assert supervisor.pid != first


def test_a_control_group_that_processes_leave_late_is_tried_again_until_it_is_gone(monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr("atoll.jail.supervisor.main.STUCK_SECONDS", 0.01)
    served, tries = Supervisor(theirs), []

    def remove_stuck() -> None:
        tries.append(len(tries))
        if len(tries) == 3:
            ours.close()

    served._groups = SimpleNamespace(stuck=[1], remove_stuck=remove_stuck, close=lambda: None)
    timer = threading.Timer(20, ours.close)
    timer.start()
    served.serve()
    timer.cancel()
    theirs.close()
    assert len(tries) >= 3


def test_an_event_is_not_taken_for_one_of_the_next_descriptor_of_its_number():
    """Two are ready at once, and the callback of the first closes the other's descriptor."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    served, called = Supervisor(theirs), []
    pipes = [os.pipe() for _ in range(3)]
    (one, _), (two, _), (fresh, _) = pipes

    def replace(own: int, other: int) -> None:
        called.append(own)
        os.read(own, 1)
        served._selector.unregister(other)
        os.dup2(fresh, other)
        served._selector.register(other, 1, ours.close)

    for own, other in ((one, two), (two, one)):
        served._selector.register(own, 1, partial(replace, own, other))
    for _, end in pipes:
        os.write(end, b"x")
    served.serve()
    theirs.close()
    packets.close_all(fd for pipe in pipes for fd in pipe)
    assert len(called) == 1


def test_a_fault_at_the_end_of_one_sandbox_does_not_end_the_supervisor(capfd):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    served = Supervisor(theirs)
    ended = Mock(due=True, cgroup=None, **{"is_over.return_value": True})
    ended.close.side_effect = KeyError("12 is not registered")
    served._records.add(ended)
    ours.close()
    served.serve()
    theirs.close()
    assert "12 is not registered" in capfd.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root raises its priority")
def test_guests_of_a_host_of_high_priority_have_the_usual_one():
    code = "import atoll\nwith atoll.create_sandbox() as box: print(box.execute('import os; os.nice(0)').value)"
    command = ["nice", "-n", "-5", sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "0\n"


async def test_many_failing_starts_at_once_do_not_harm_the_supervisor():
    mounts = (Mount(source=Path("/no/such/thing"), target="/data"),)
    config = atoll.SandboxConfig(policy=atoll.ExecutionPolicy(mounts=mounts))
    async with atoll.aio.create_sandbox() as box:
        await box.execute("x = 1")
        for _ in range(8):
            tried = await asyncio.gather(
                *(atoll.NativePythonSandbox(config).initialize() for _ in range(6)),
                return_exceptions=True,
            )
            assert {getattr(error, "step", repr(error)) for error in tried} == {"build_root"}
        assert (await box.execute("x")).value == 1


async def test_a_supervisor_without_descriptors_refuses_and_its_sandboxes_live_on():
    async with atoll.aio.create_sandbox() as box:
        await box.execute("x = 1")
        assert await _can_open()  # its control group is kept for the next, with its descriptors
        pid = supervisor.pid
        descriptors = f"/proc/{pid}/fd"
        used = await _settled(lambda: len(os.listdir(descriptors)))
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        refused = 0
        try:
            for spare in range(12):  # a jail takes more where there are control groups
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + spare, limits[1]))
                refused += not await _can_open()
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert refused > 4
        assert (await box.execute("x")).value == 1
        assert supervisor.pid == pid
        end = time.monotonic() + 30  # a lease is closed after its last word
        while len(os.listdir(descriptors)) > used and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert len(os.listdir(descriptors)) == used
        async with atoll.aio.create_sandbox() as other:
            assert (await other.execute("6 * 7")).value == 42


def test_the_supervisor_may_open_as_many_files_as_this_user_may():
    with atoll.create_sandbox():
        soft, hard = resource.prlimit(supervisor.pid, resource.RLIMIT_NOFILE)
    assert soft == hard


def test_guests_do_not_outlive_a_host_that_has_a_fork():
    """A fork holds copies of the host's sockets, so those do not end when the host does."""
    code = (
        "import atoll, os, time\n"
        "from atoll.jail.supervisor.client import supervisor\n"
        "box = atoll.create_sandbox()\n"
        "if os.fork() == 0:\n    os.closerange(0, 3)\n    time.sleep(20)\n    os._exit(0)\n"
        "print(supervisor.pid, flush=True)\ntime.sleep(60)"
    )
    host = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with host.stdout:
        pid = int(host.stdout.readline())
    forks = [child for child in _children(host.pid) if child != pid]
    try:
        assert _children(pid)
        host.kill()
        host.wait()
        end = time.monotonic() + 30
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
            time.sleep(0.05)
        assert not os.path.exists(f"/proc/{pid}")
    finally:
        for child in forks:
            os.kill(child, signal.SIGKILL)


async def test_a_bind_source_that_does_not_exist_fails_in_building_the_root():
    error = await failure(spec(binds=(Bind(source="/no/such/thing", target="/data"),)))
    assert error.step == "build_root"
    assert "/no/such/thing" in error.reason


async def test_a_bind_target_below_a_file_fails_in_building_the_root():
    error = await failure(spec(binds=(Bind(source="/usr", target="/etc/passwd/x"),)))
    assert error.step == "build_root"
    assert "/etc/passwd" in error.reason


async def test_a_working_folder_that_has_gone_fails_in_building_the_root(tmp_path):
    error = await failure(spec(workspace=str(tmp_path / "gone")))
    assert error.step == "build_root"
    assert "open_tree" in error.reason


async def test_a_working_folder_removed_after_the_configuration_is_a_clear_error(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    box = atoll.NativePythonSandbox(atoll.SandboxConfig(workspace=folder))
    folder.rmdir()
    with pytest.raises(atoll.SandboxStartError, match=r"build_root: .*No such file"):
        await box.initialize()
    folder.mkdir()
    await box.initialize()
    assert (await box.execute("6 * 7")).value == 42
    await box.destroy()


async def test_a_limit_that_cannot_be_set_fails_in_setting_limits():
    limits = Limits(memory=None, processes=None, disk=1 << 20, file_size=None, open_files="many")
    assert (await failure(spec(limits=limits))).step == "set_rlimits"


async def test_a_disk_that_cannot_be_mounted_fails_in_building_the_root():
    limits = Limits(memory=None, processes=None, disk="much", file_size=None, open_files=256)
    error = await failure(spec(limits=limits))
    assert error.step == "build_root"
    assert "mount tmpfs" in error.reason


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("/usr/lib", "Permission denied"),
        ("/etc/passwd", "Permission denied"),
        ("/no/such/python", "No such file or directory"),
    ],
)
async def test_an_interpreter_that_cannot_be_executed_fails_in_executing_it(program, reason):
    error = await failure(spec(argv=(program,)))
    assert (error.step, error.reason) == (f"execute {program}", reason)


def test_a_file_that_is_not_executable_is_no_interpreter(tmp_path):
    (tmp_path / "python").write_text("#!/bin/sh\necho Python 3.12\n")
    with pytest.raises(atoll.ConfigError, match="is not executable"):
        atoll.create_sandbox(python=str(tmp_path / "python"))


async def test_a_request_that_is_no_spec_is_refused_and_the_supervisor_goes_on(monkeypatch):
    async with atoll.aio.create_sandbox() as box:
        pid = supervisor.pid
        monkeypatch.setattr("atoll.jail.supervisor.spec.request", lambda _: b'{"kind": "jail"}')
        with pytest.raises(atoll.SandboxStartError):
            await _open()
        monkeypatch.undo()
        assert (await box.execute("6 * 7")).value == 42
        assert supervisor.pid == pid


async def test_usage_counts_the_processor_time_of_child_processes():
    async with atoll.aio.create_sandbox() as box:
        lease = box._guest.lease
        before = await lease.cpu_seconds()
        burn = "import time\nend = time.process_time() + {0}\nwhile time.process_time() < end: pass"
        await box.execute(f"import subprocess, sys\nburn = {burn!r}.format(0.4)")
        await box.execute("subprocess.run([sys.executable, '-c', burn], check=True)")
        ended = await lease.cpu_seconds() - before
        assert 0.35 < ended < 5
        await box.execute(
            "child = subprocess.Popen([sys.executable, '-c', burn.replace('0.4', '60')])"
        )
        async with asyncio.timeout(30):
            while await lease.cpu_seconds() - before - ended < 0.1:  # noqa: ASYNC110 - it burns
                await asyncio.sleep(0.1)


async def test_a_measurement_that_nobody_waits_for_any_more_is_no_error(caplog):
    async with atoll.aio.create_sandbox() as box:
        for _ in range(5):
            asking = asyncio.ensure_future(box._guest.lease.cpu_seconds())
            await asyncio.sleep(0)
            asking.cancel()
        assert await box._guest.lease.cpu_seconds() >= 0
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_every_path_of_the_spec_is_absolute():
    config = atoll.SandboxConfig(
        policy=atoll.ExecutionPolicy(mounts=(Mount(source=".", target="/d"),))
    )
    launcher = sandbox.NativeLauncher(config)
    launcher.python, launcher.level = interpreter.resolve(None), Isolation.JAILED
    made = launcher.spec(config, 0)
    assert all(os.path.isabs(bind.source) and os.path.isabs(bind.target) for bind in made.binds)
    assert os.path.isabs(made.argv[0])
    fields = json.loads(specs.request(made))
    assert specs.requested(fields.pop("kind"), fields) == made


async def _settled(look: Callable[[], int]) -> int:
    """What is seen once it stays the same: what ended before has been let go of by then."""
    seen, times = look(), 0
    while times < 10:
        await asyncio.sleep(0.05)
        now = look()
        seen, times = now, times + 1 if now == seen else 0
    return seen


async def _can_open() -> bool:
    try:
        await (await _open()).destroy()
    except atoll.SandboxError:
        return False
    return True


async def _open(**options) -> atoll.BaseSandbox:
    return await atoll.aio.create_sandbox(**options)


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_supervisor_loads_no_module_that_does_something_at_each_fork():
    def loaded(module: str) -> set[str]:
        code = f"import sys; sys.path[:0] = sys.argv[1:]; import {module}; print(*sys.modules)"
        source = str(Path(atoll.__file__).parents[1])
        command = [sys.executable, "-I", "-S", "-c", code, source]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        return set(done.stdout.split())

    more = loaded("atoll.jail.supervisor.main") - loaded("ctypes")  # 3.14's loads threading
    assert "atoll.jail.supervisor.main" in more
    assert not {"random", "threading", "logging", "tempfile"} & more
