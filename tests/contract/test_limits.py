"""Every limit is hit: what happens then is a clear result, and the sandbox can be used again."""

from __future__ import annotations

import pytest

from atoll import Capability, ExecutionPolicy

MIB = 1 << 20


def errors_of(box, name):
    """A process is told the errno by its name; WebAssembly may have one word for all, EIO."""
    known = (f"{name}\n",)
    return known if Capability.SUBPROCESS in box.capabilities else (*known, "EIO\n")


@pytest.mark.needs(Capability.LIMIT_MEMORY)
def test_memory_over_the_limit_is_a_memory_error(open_box):
    box = open_box(policy=ExecutionPolicy(memory_bytes=128 * MIB))
    box.execute("x = 1")
    result = box.execute("b = bytearray(200 << 20)")
    assert result.error_type == "MemoryError"
    assert box.execute("b = bytearray(50 << 20); x").value == 1


@pytest.mark.needs(Capability.LIMIT_MEMORY, Capability.SUBPROCESS)
def test_memory_of_many_processes_together_is_limited(open_box):
    box = open_box(policy=ExecutionPolicy(memory_bytes=128 * MIB))
    result = box.execute(
        "import os, time\n"
        "pids = []\n"
        "for _ in range(6):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        held = b'x' * (60 << 20)\n"
        "        time.sleep(3)\n"
        "        os._exit(0)\n"
        "    pids.append(pid)\n"
        "ended = [os.waitpid(pid, 0)[1] for pid in pids]\n"
        "print('survivors', sum(status == 0 for status in ended))"
    )
    assert "survivors 6" not in result.stdout
    assert result.kind == "memory" or result.stdout.startswith("survivors")
    assert box.execute("1").value == 1


@pytest.mark.needs(Capability.LIMIT_MEMORY)
@pytest.mark.spec("R1.8")
def test_memory_used_is_at_least_what_the_code_held(box):
    result = box.execute("held = b'x' * (40 << 20)")
    assert result.memory_used_bytes >= 40 * MIB


@pytest.mark.needs(Capability.LIMIT_PROCESSES, Capability.SUBPROCESS)
def test_a_fork_bomb_is_stopped_by_the_process_limit(open_box):
    box = open_box(policy=ExecutionPolicy(max_processes=20))
    result = box.execute(
        "import os, time\nn = 0\n"
        "try:\n"
        "    while n < 1000:\n"
        "        if os.fork() == 0: time.sleep(30); os._exit(0)\n"
        "        n += 1\n"
        "except OSError as exc: print(type(exc).__name__)\nn"
    )
    assert result.value <= 20
    assert result.stdout == "BlockingIOError\n"


@pytest.mark.needs(Capability.LIMIT_PROCESSES, Capability.THREADS)
def test_a_thread_bomb_is_stopped(open_box):
    box = open_box(policy=ExecutionPolicy(max_processes=20))
    code = "import threading, time\nfor n in range(1000): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()"
    assert box.execute(code).error == (
        "RuntimeError: can't start new thread: processes and threads are limited "
        "(policy: max_processes, or --processes)"
    )


@pytest.mark.usefixtures("counted_cpu")
@pytest.mark.needs(Capability.LIMIT_CPU)
@pytest.mark.parametrize(
    "children",
    [0, pytest.param(2, marks=pytest.mark.needs(Capability.SUBPROCESS))],
)
def test_cpu_time_is_limited_over_all_processes(open_box, children):
    box = open_box(policy=ExecutionPolicy(cpu_seconds=0.4))
    box.execute("x = 1")
    fork = f"import os\nfor _ in range({children}):\n    if os.fork() == 0:\n        while True: pass\n"
    wait = "while True: pass" if not children else "import time; time.sleep(60)"
    result = box.execute((fork if children else "") + wait)
    assert (result.kind, result.exit_code) == ("cpu", 152)
    assert result.error == "TimeoutError: the CPU limit of 0.4 s was reached"


@pytest.mark.usefixtures("counted_cpu")
@pytest.mark.needs(Capability.LIMIT_CPU)
def test_the_cpu_limit_is_for_each_execution(open_box):
    box = open_box(policy=ExecutionPolicy(cpu_seconds=0.5))
    burn = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    assert all(box.execute(burn).success for _ in range(4))


@pytest.mark.needs(Capability.LIMIT_DISK, Capability.FILES)
@pytest.mark.parametrize(
    "folder",
    ["/app", "/tmp", pytest.param("/dev/shm", marks=pytest.mark.needs(Capability.SUBPROCESS))],
)
def test_a_full_disk_is_an_os_error(open_box, folder):
    box = open_box(policy=ExecutionPolicy(disk_bytes=8 * MIB))
    code = f"import errno\ntry:\n    with open('{folder}/fill', 'wb') as f:\n        for n in range(64): f.write(b'x' * (1 << 20))\nexcept OSError as exc: print(errno.errorcode[exc.errno])"
    assert box.execute(code).stdout in errors_of(box, "ENOSPC")
    assert (
        box.execute(
            f"import os; os.unlink('{folder}/fill'); open('{folder}/ok', 'w').write('x')"
        ).value
        == 1
    )


@pytest.mark.needs(Capability.LIMIT_FILE_SIZE, Capability.FILES)
def test_a_file_over_the_size_limit_is_an_os_error(open_box):
    box = open_box(policy=ExecutionPolicy(file_size_bytes=1 * MIB))
    result = box.execute("open('/app/big', 'wb').write(b'x' * (2 << 20))")
    assert result.error_type == "OSError"
    if Capability.SUBPROCESS in box.capabilities:
        limit = "the limit for one file is 1,048,576 bytes (policy: file_size_bytes)"
        assert result.error == f"OSError: [Errno 27] File too large: {limit}"
    assert box.execute("import os; os.path.getsize('/app/big')").value <= 1 * MIB


@pytest.mark.needs(Capability.LIMIT_FILE_SIZE)
def test_open_files_are_limited(open_box):
    box = open_box(policy=ExecutionPolicy(max_open_files=64))
    code = "import errno\nkept = []\ntry:\n    while len(kept) < 100: kept.append(open('/app/f', 'w'))\nexcept OSError as exc: print(errno.errorcode[exc.errno])"
    assert box.execute(code).stdout in errors_of(box, "EMFILE")
    assert box.execute("for file in kept: file.close()").success
    assert box.execute("1").value == 1


@pytest.mark.needs(Capability.LIMIT_MEMORY)
def test_no_limit_has_to_be_asked_for_and_works(open_box):
    box = open_box(
        policy=ExecutionPolicy(
            memory_bytes=None, max_processes=None, disk_bytes=None, file_size_bytes=None
        )
    )
    assert box.execute("len(bytearray(600 << 20))").value == 600 * MIB
