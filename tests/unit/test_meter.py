"""Memory of processes as the supervisor measures it where no control group does."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import types

import pytest
from costs import least_cpu_seconds

from atoll.guest.core import memory
from atoll.jail.measure import meter
from atoll.jail.measure.meter import ContainerMemory
from atoll.jail.supervisor import jail_record

MANY = 60_000
HOLD = """
import mmap, sys
held = mmap.mmap(-1, int(sys.argv[1]) * 2 * mmap.PAGESIZE)
import ctypes
base, page = ctypes.addressof(ctypes.c_char.from_buffer(held)), mmap.PAGESIZE
protect = ctypes.CDLL(None).mprotect
protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
for n in range(int(sys.argv[1])):
    if protect(base + 2 * n * page, page, 1):
        break
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def crowd():
    """A process with almost as many mappings as the kernel allows."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(MANY // 2)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    yield process.pid
    process.communicate()


def test_what_is_mapped_is_not_looked_at_while_it_cannot_be_too_much(monkeypatch):
    monkeypatch.setattr(meter, "_maps", lambda *_: pytest.fail("it was looked at"))
    here = os.getpid()
    reserved = 2 * meter._statm(here, meter._ADDRESS_SPACE)
    assert meter.memory_bytes(here, [here], 1 << 50) >= reserved


def test_shared_memory_out_of_sight_is_counted():
    with mmap.mmap(-1, 64 << 20):
        assert meter.memory_bytes(os.getpid(), [os.getpid()], 0) >= 64 << 20


def test_mappings_that_are_hidden_are_counted_by_their_address_space(monkeypatch):
    def hidden(path, *_):
        raise PermissionError(path)

    monkeypatch.setattr(meter, "open", hidden, raising=False)
    here = os.getpid()
    assert meter.memory_bytes(here, [here], 0) >= meter._statm(here, meter._ADDRESS_SPACE)


def test_a_process_with_very_many_mappings_is_counted_by_its_address_space(crowd):
    assert _read(f"/proc/{crowd}/maps").count(b"\n") > MANY * 0.9
    found = meter.memory_bytes(os.getpid(), [crowd] * 8, 0)
    counted = least_cpu_seconds(lambda: meter.memory_bytes(os.getpid(), [crowd] * 8, 0))
    looked_at = least_cpu_seconds(lambda: _read(f"/proc/{crowd}/maps"))
    assert counted < 4 * looked_at, "it has looked at all mappings of all eight"
    assert found >= meter._statm(crowd, meter._ADDRESS_SPACE)


def _read(path):
    with open(path, "rb") as file:
        return file.read()


@pytest.fixture
def memory_file():
    fd = os.memfd_create("runsc-memory")
    os.truncate(fd, 1 << 40)
    yield fd
    os.close(fd)


def test_a_container_has_what_its_memory_file_holds_mapped_or_not(memory_file):
    measured = ContainerMemory()
    before = measured.measure([os.getpid()])
    assert 0 < before < 1 << 39
    os.pwrite(memory_file, bytes(8 << 20), 1 << 30)
    assert measured.measure([os.getpid()]) >= before + (7 << 20)
    assert measured.measure([]) == 8 << 20


def test_a_memory_file_of_another_name_is_not_a_container_s():
    with open(os.memfd_create("atoll-context"), "wb"):
        assert ContainerMemory().measure([os.getpid(), 1 << 30]) is None


def test_memory_that_cannot_be_read_for_a_moment_ends_no_sandbox():
    readable, killed = False, []

    def processes():
        if not readable:
            raise OSError(errno.EMFILE, "Too many open files")
        return [1]

    record = types.SimpleNamespace(
        limits=types.SimpleNamespace(memory=1), _reaped=False, _measure_at=0.0, _unmeasured=0,
        _measured=lambda: True, _processes=processes, _exceeds=lambda _limit, _pids: True,
        kill=lambda: killed.append(True),
    )  # fmt: skip
    for _ in range(jail_record.MAX_UNMEASURED):
        jail_record.JailRecord.check_memory(record)
    assert killed == []
    with pytest.raises(OSError, match="Too many open files"):  # the supervisor ends it then
        jail_record.JailRecord.check_memory(record)
    readable = True
    jail_record.JailRecord.check_memory(record)
    assert (killed, record._unmeasured) == ([True], 0)


def test_one_process_meets_a_memory_error_before_its_jail_is_ended():
    """Ended a moment after its cell, the session would be lost to a later one."""
    assert jail_record.MEMORY_SLACK > memory.MARGIN


def test_a_long_file_of_proc_is_read_to_its_end():
    """The kernel gives a list page by page."""
    found = meter.read(f"/proc/{os.getpid()}/smaps")
    assert len(found) > 1 << 16
    assert found.rstrip().splitlines()[-1].startswith(b"VmFlags")
