"""Commands that are stopped: deadlines, cancel, limits. Nothing of them is left, variables are."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import atoll
from atoll import Capability, ExecutionPolicy

pytestmark = pytest.mark.needs(Capability.SHELL)
MIB = 1 << 20
RUNNING = """
import os
def running():
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if b'4321' in open(f'/proc/{pid}/cmdline', 'rb').read(): found.append(pid)
        except OSError: pass
    return found
"""
"""Which processes have the number in their command line that tests sleep for."""


@pytest.mark.spec("R3.1")
@pytest.mark.parametrize(
    "command",
    [
        "sleep 4321",
        "echo 4321; while :; do :; done",
        "sh -c 'sh -c \"sleep 4321; :\" & sleep 4321; :'; :",
        "sleep 4321 & sleep 4321 & wait",
        "timeout 600 sleep 4321; :",
        "set -m; sleep 4321 & sleep 4321; :",
        "trap '' INT TERM HUP; sleep 4321; sleep 4321",
        "sleep 4321 | sleep 4321 | cat",
        "sleep 4321 & kill -STOP $$",
        "python3 -c 'import os, time; os.fork(); os.fork(); time.sleep(4321)'; :",
    ],
)
def test_a_timeout_ends_all_of_the_command_and_keeps_the_state(box, backend, command):
    limit = 2_000 if backend == "gvisor" else 500  # its shell takes longer to start
    box.execute(f"x = 'kept'{RUNNING}")
    response = box.shell(f"echo partial; {command}", timeout_ms=limit)
    assert response.exit_code == 124
    assert response.error == f"the command took longer than {limit} ms and was ended"
    assert response.output.startswith("partial\n")
    assert box.execute("running(), x").value == ([], "kept")


def test_the_deadline_of_the_sandbox_holds_if_none_is_given(open_box):
    box = open_box(timeout_ms=300)
    response = box.shell("sleep 4321")
    assert response.error == "the command took longer than 300 ms and was ended"


def test_a_fork_bomb_is_ended_at_the_deadline(open_box):
    box = open_box(policy=ExecutionPolicy(max_processes=30))
    box.execute("x = 'kept'")
    response = box.shell("f() { f | f & }; f; sleep 4321", timeout_ms=500)
    assert response.exit_code == 124
    assert box.shell("echo usable").output.endswith("usable\n")


def test_cancel_from_another_thread_ends_the_command(box):
    box.execute(f"x = 'kept'{RUNNING}")
    timer = threading.Timer(0.3, box.cancel)
    timer.start()
    response = box.shell("echo partial; sleep 4321; :")
    timer.join()
    assert response == atoll.ExecuteResponse(
        output="partial\n", exit_code=130, error="the command was cancelled"
    )
    assert box.execute("running(), x").value == ([], "kept")


async def test_a_cancelled_task_leaves_nothing_of_its_command(backend):
    async with atoll.aio.create_sandbox(backend=backend) as box:
        await box.execute(f"x = 'kept'{RUNNING}")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await box.shell("sleep 4321; :")
        assert (await box.execute("running(), x")).value == ([], "kept")


async def test_destroy_while_a_command_runs_ends_it(backend):
    async with atoll.aio.create_sandbox(backend=backend) as box:
        command = asyncio.create_task(box.shell("sleep 4321; :"))
        await asyncio.sleep(0.3)
        await box.destroy()
        assert (await command).exit_code == 130


async def test_commands_and_cells_run_one_after_the_other(backend):
    async with atoll.aio.create_sandbox(backend=backend) as box:
        first = asyncio.create_task(box.shell("sleep 0.3; echo x > order"))
        await asyncio.sleep(0.05)
        assert (await box.execute("open('order').read()")).value == "x\n"
        assert (await first).exit_code == 0


@pytest.mark.usefixtures("counted_cpu")
@pytest.mark.needs(Capability.LIMIT_CPU)
def test_cpu_time_is_limited(open_box):
    box = open_box(policy=ExecutionPolicy(cpu_seconds=0.3))
    box.execute("x = 'kept'")
    response = box.shell("while :; do :; done")
    assert (response.exit_code, response.error) == (152, "the CPU limit of 0.3 s was reached")
    assert box.execute("x").value == "kept"


@pytest.mark.spec("R3.1")
@pytest.mark.needs(Capability.LIMIT_MEMORY)
def test_memory_is_limited_over_all_processes(open_box):
    box = open_box(policy=ExecutionPolicy(memory_bytes=128 * MIB))
    box.execute("x = 1")
    hold = "python3 -c 'import time; x = bytes([1]) * (60 << 20); time.sleep(60)'"
    response = box.shell(f"echo partial; {hold} & {hold} & {hold} & {hold} & wait -n; exit $?")
    assert response.exit_code == 137
    assert response.output.startswith("partial\n")
    lost = response.error is not None  # all of it was ended; a control group ends the largest alone
    assert not lost or response.error == (
        "the sandbox used more than its 134,217,728 bytes of memory and was ended; "
        "the variables of the session are lost"
    )
    assert box.shell("echo again").output.endswith("again\n")
    result = box.execute("'x' in globals()")
    assert (result.value, result.state_lost) == (not lost, lost)
    assert not box.execute("1").state_lost


@pytest.mark.needs(Capability.LIMIT_MEMORY)
def test_a_process_that_wants_too_much_at_once_fails_alone(open_box):
    box = open_box(policy=ExecutionPolicy(memory_bytes=128 * MIB))
    box.execute("x = 'kept'")
    response = box.shell("python3 -c 'bytearray(1 << 30)'")
    assert (response.exit_code, response.error) == (1, None)
    assert response.output.endswith("MemoryError\n")
    assert box.execute("x").value == "kept"


@pytest.mark.needs(Capability.LIMIT_PROCESSES)
def test_processes_are_limited(open_box):
    box = open_box(policy=ExecutionPolicy(max_processes=20))
    response = box.shell(
        "python3 -c '\n"
        "import os, time\n"
        "n = 0\n"
        "try:\n"
        "    while n < 1000:\n"
        "        if os.fork() == 0: time.sleep(30); os._exit(0)\n"
        "        n += 1\n"
        "except OSError as exc: print(type(exc).__name__, n < 20)'"
    )
    assert response.output == "BlockingIOError True\n"


@pytest.mark.needs(Capability.LIMIT_PROCESSES, Capability.THREADS)
def test_no_room_for_a_shell_is_said(open_box):
    box = open_box(policy=ExecutionPolicy(max_processes=20))
    box.execute(
        "import threading; stop = threading.Event()\n"
        "try:\n"
        "    while True: threading.Thread(target=stop.wait).start()\n"
        "except RuntimeError: pass"
    )
    response = box.shell("true")
    assert (response.exit_code, response.output) == (126, "")
    assert response.error.startswith("the command could not be run: BlockingIOError: ")
    box.execute("stop.set()")
    assert until_it_runs(box).exit_code == 0


def until_it_runs(box):
    """Threads take a moment to end."""
    end = time.monotonic() + 30
    while (response := box.shell("true")).exit_code == 126 and time.monotonic() < end:
        time.sleep(0.02)
    return response


@pytest.mark.needs(Capability.LIMIT_DISK)
def test_disk_is_limited(open_box):
    box = open_box(policy=ExecutionPolicy(disk_bytes=4 * MIB))
    response = box.shell("head -c 10000000 /dev/zero > big")
    assert response.exit_code != 0
    assert "No space left on device" in response.output
    long = f": {'x' * (1 << 20)}"
    assert box.shell(long).error == (
        "the command could not be run: OSError: [Errno 28] No space left on device"
    )
    assert box.shell(f"rm big; {long[:1000]}").exit_code == 0
    assert box.shell(long).exit_code == 0


@pytest.mark.needs(Capability.LIMIT_FILE_SIZE)
def test_one_file_is_limited(open_box):
    box = open_box(policy=ExecutionPolicy(file_size_bytes=MIB))
    response = box.shell("head -c 2000000 /dev/zero > big; echo $?; wc -c < big")
    assert response.output.endswith(f"153\n{MIB}\n")
