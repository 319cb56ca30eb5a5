"""Processes and terminals beside the cells: exact bytes, ends, limits, and where they are refused."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from pathlib import Path

import pytest

import atoll
from atoll import Capability, ConfigError, ProcessError, SandboxError
from atoll.launch.processes import KEPT_BYTES

pytestmark = pytest.mark.needs(Capability.PROCESSES)
ALL_BYTES = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 40)"
SEES = (
    "grep -E '^(Uid|Gid|Groups|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr -d ' \\t'"
)


def output(process: atoll.SyncProcess) -> bytes:
    return b"".join(piece.data for piece in process.output())


def read_until(process: atoll.SyncProcess, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        data = process.read(timeout_ms=20_000)
        assert data, f"it ended with {found!r}"
        found += data
    return found


def answer_of(shell: atoll.SyncProcess) -> None:
    """Ask until it answers: the kernel drops what is typed or printed while it turns ^C around."""
    seen, deadline = b"", time.monotonic() + 20
    while b"still-42" not in seen:
        assert time.monotonic() < deadline, seen
        shell.write("echo still-$((6 * 7))\n")
        with contextlib.suppress(TimeoutError):
            seen += shell.read(timeout_ms=500)


def test_bytes_cross_exactly_in_both_directions(box):
    process = box.start(["python3", "-c", ALL_BYTES])
    assert output(process) == bytes(range(256)) * 40
    process = box.start("cat")
    process.write(bytes(range(256)), end=True)
    assert output(process) == bytes(range(256))
    assert (process.wait().exit_code, process.dropped) == (0, 0)


def test_streams_are_apart_and_ends_are_as_in_a_shell(box):
    process = box.start("echo out; echo err >&2; echo direct > /dev/stderr; exit 7")
    end = process.wait(timeout_ms=20_000)
    assert (end.running, end.exit_code, end.signal) == (False, 7, None)
    assert process.read() == b"out\n"
    assert process.read("stderr") == b"err\ndirect\n"
    assert process.read() == process.read("stderr") == b""
    assert box.start("kill -9 $$").wait().exit_code == 137
    with pytest.raises(ProcessError, match="no-such-program"):
        box.start(["no-such-program"])
    with pytest.raises(ProcessError, match="/none"):
        box.start("true", cwd="/none")


def test_it_gets_folder_environment_and_the_files_of_the_session(box):
    box.execute("open('seen.txt', 'w').write('by a cell')")
    process = box.start(["sh", "-c", "pwd; cat seen.txt; echo :$HUE"], env={"HUE": "teal"})
    assert output(process) == b"/app\nby a cell:teal\n"
    box.start("echo by a process > made.txt", cwd="/app").wait()
    assert box.execute("open('made.txt').read()").value == "by a process\n"


def test_several_run_beside_a_cell_and_never_wait_for_it(box):
    box.execute("import os, time")
    cell = threading.Thread(
        target=box.execute,
        args=("while not os.path.exists('go'): time.sleep(0.01)\nos.remove('go')",),
    )
    cell.start()
    first, second = box.start("cat"), box.start("echo $((6 * 7))")
    assert output(second) == b"42\n"
    first.write("while it runs\n")
    assert first.read() == b"while it runs\n"
    known = {process.id: process.info.running for process in box.processes()}
    assert (known[first.id], known[second.id]) == (True, False)
    assert cell.is_alive()
    box.start("touch go", cwd="/app").wait()
    cell.join()
    first.kill()
    assert first.wait().signal == 9


def test_a_terminal_has_job_control_and_a_size(box):
    shell = box.start(["bash", "--norc", "-i"], pty=(30, 101), env={"PS1": "$ ", "TERM": "dumb"})
    shell.write("stty size; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo is-$((1))-tty; tty\n")
    seen = read_until(shell, b"/dev/pts/")
    assert b"30 101" in seen
    assert b"is-1-tty" in seen
    shell.resize(11, 22)
    shell.write("stty size; echo over > /dev/tty\n")
    read_until(shell, b"11 22")
    shell.write("python3 -c \"import time; print('be' 'gun', flush=True); time.sleep(1e3)\"\n")
    read_until(shell, b"begun\r\n")
    shell.write(b"\x03")
    answer_of(shell)
    shell.write("exit 5\n")
    assert shell.wait(timeout_ms=20_000).exit_code == 5
    assert shell.info.pty
    with pytest.raises(ConfigError, match="terminal"):
        box.start("true").resize(1, 1)


def test_signals_reach_its_whole_process_group(box):
    process = box.start("trap 'echo caught; exit 3' TERM; echo ready; sleep 1000 & wait")
    read_until(process, b"ready")
    with pytest.raises(TimeoutError):
        process.wait(timeout_ms=50)
    process.signal("SIGTERM")
    assert process.wait(timeout_ms=20_000).exit_code == 3
    with pytest.raises(ConfigError, match="SIGNONE"):
        process.signal("SIGNONE")


def test_output_that_is_not_read_is_dropped_from_the_oldest_and_counted(box):
    size = 4 * KEPT_BYTES
    process = box.start(f"head -c {size} /dev/zero; echo the end")
    process.wait(timeout_ms=60_000)
    data = output(process)
    assert data.endswith(b"the end\n")
    assert len(data) <= KEPT_BYTES
    assert process.dropped == size + len("the end\n") - len(data)


def test_output_that_is_read_waits_for_its_reader(box):
    size = 8 * KEPT_BYTES
    process = box.start(f"head -c {size} /dev/zero")
    count = 0
    for piece in process.output():
        count += len(piece.data)
        time.sleep(0.02)
    assert (count, process.dropped) == (size, 0)


def test_input_waits_for_a_process_that_does_not_read(box):
    process = box.start("read go; wc -c")
    late = threading.Timer(0.3, lambda: None)
    late.start()
    process.write(b"go\n" + b"x" * 3_000_000, end=True)
    assert output(process) == b"3000000\n"


def test_it_has_the_walls_and_limits_of_the_guest(box):
    of_guest = box.execute(f"import subprocess; subprocess.getoutput({SEES!r})").value
    process = box.start(SEES)
    assert output(process).decode().strip() == of_guest
    limits = "for one in c f n s; do ulimit -H$one; done; umask; id; hostname"
    assert output(box.start(limits)).decode() == box.shell(limits).output
    assert output(box.start("cat /proc/self/mountinfo; ls /proc/self/fd")) in (
        b"0\n1\n2\n3\n",
        box.shell("cat /proc/self/mountinfo; ls /proc/self/fd").output.encode(),
    )


def on_the_host(words: bytes) -> bool:
    """Return whether a process of this machine has the words in its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if words in path.read_bytes():
                return True
    return False


def wait_until_gone(words: bytes) -> None:
    deadline = time.monotonic() + 20
    while on_the_host(words):
        assert time.monotonic() < deadline, f"{words!r} outlived its session"
        time.sleep(0.01)


def test_processes_end_with_the_session(open_box):
    box, seconds = open_box(), f"98765.{time.time_ns()}"
    process = box.start(f"(setsid sleep {seconds} &); echo begun; sleep {seconds}")
    read_until(process, b"begun")
    box.destroy()
    wait_until_gone(seconds.encode())
    with pytest.raises(SandboxError):
        process.read()


def test_a_process_that_was_never_started_is_named(box):
    process = box.start("true")
    process.wait()
    lost = atoll.Process(box.inner, dataclasses.replace(process.info, id="999"))
    with pytest.raises(SandboxError, match="'999'"):
        box.portal.run(lost.read())


async def test_it_is_there_for_async_callers(backend):
    async with atoll.aio.create_sandbox(backend=backend) as box:
        async with await box.start("echo one; read x; echo $x") as process:
            assert await process.read() == b"one\n"
            await process.write("two\n")
            assert [piece async for piece in process.output()] == [
                atoll.OutputPiece("stdout", b"two\n")
            ]
        many = [await box.start(["echo", str(number)]) for number in range(8)]
        assert await asyncio.gather(*(one.read() for one in many)) == [
            b"%d\n" % number for number in range(8)
        ]


@pytest.mark.parametrize("options", [{"pty": (1, -1)}, {"pty": "yes"}, {"shell": True}])
def test_options_that_are_wrong_say_so(box, options):
    with pytest.raises(ConfigError):
        box.start("true", **options)


@pytest.mark.needs(Capability.FORK)
def test_a_fork_has_none_of_them_and_its_own_end_with_it(box):
    process = box.start("cat")
    twin, seconds = box.fork(), f"87654.{time.time_ns()}"
    assert twin.processes() == []
    of_twin = twin.start(f"(setsid sleep {seconds} &); echo begun; exec sleep {seconds}")
    read_until(of_twin, b"begun")
    twin.destroy()
    wait_until_gone(seconds.encode())
    process.write("alive")
    assert process.read() == b"alive"
