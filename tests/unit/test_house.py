"""Who lives in a jail together: told apart by their mounts, found wherever they hide."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from atoll.jail import house, meter
from atoll.jail.house import House

IN_MOUNTS_OF_ITS_OWN = """
import os, sys, time
from atoll.jail import syscalls
if os.geteuid():
    syscalls.unshare(syscalls.CLONE_NEWUSER)
syscalls.unshare(syscalls.CLONE_NEWNS)
print('there', flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Daemons and guests of other tests are children too, and must not be evicted."""
    known, find = set(meter.processes([os.getpid()])), meter.processes

    def processes(roots):
        return [pid for pid in find(roots) if pid not in known and house.parent_of(pid) in roots]

    monkeypatch.setattr(meter, "processes", processes)


@pytest.fixture
def tenant():
    """A process in a mount namespace of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", IN_MOUNTS_OF_ITS_OWN], stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def make(**tenants: int) -> House:
    """A house of this test's process, with tenants by their mount namespaces."""
    one = House(lambda: [os.getpid()], lambda: None)
    for number in tenants.values():
        one.tenants.add(_Tenant(number))
    return one


class _Tenant(SimpleNamespace):
    def __init__(self, space: int, branching: object = None) -> None:
        super().__init__(mount_namespace=space, branching=branching)

    def __hash__(self) -> int:
        return id(self)


def test_a_process_that_is_gone_has_no_namespace_and_no_parent(tenant):
    assert house.namespace_of(tenant.pid) not in (0, house.namespace_of(os.getpid()))
    assert house.parent_of(tenant.pid) == os.getpid()
    tenant.kill()
    tenant.wait()
    assert (house.namespace_of(tenant.pid), house.parent_of(tenant.pid)) == (0, 0)


def test_a_parent_is_found_whatever_a_process_calls_itself():
    with contextlib.ExitStack() as stack:
        read, write = os.pipe()
        stack.callback(os.close, read)
        pid = os.fork()
        if pid == 0:
            with open("/proc/self/comm", "w") as file:
                file.write(") R 1 1 (")
            os.write(write, b"x")
            signal.pause()
        stack.callback(os.waitpid, pid, 0)
        stack.callback(os.kill, pid, signal.SIGKILL)
        os.close(write)
        os.read(read, 1)
        assert house.parent_of(pid) == os.getpid()


def test_who_has_left_is_killed_and_nobody_else(tenant):
    own = house.namespace_of(os.getpid())
    other = subprocess.Popen(["sleep", "60"])
    one = make(own=own)
    assert not one.evict(house.namespace_of(tenant.pid))
    assert tenant.wait(5) == -signal.SIGKILL
    try:
        assert one.evict(12345)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_what_is_in_nobodys_mounts_is_killed_too(tenant):
    one = make(own=house.namespace_of(os.getpid()))
    assert not one.evict(12345)
    assert tenant.wait(5) == -signal.SIGKILL


def test_a_clone_on_its_way_is_spared(tenant):
    one = House(lambda: [os.getpid()], lambda: None)
    one.tenants.add(_Tenant(house.namespace_of(os.getpid()), branching=object()))
    assert one.evict(12345)
    assert tenant.poll() is None


def test_the_last_one_to_leave_ends_the_jail():
    ends: list[int] = []
    one = House(list, lambda: ends.append(1))
    first, second = _Tenant(1), _Tenant(2)
    one.tenants |= {first, second}
    one.leave(first)
    assert ends == []
    one.leave(second)
    assert ends == [1]


def test_a_house_without_processes_has_nobody_to_kill():
    assert House(list, lambda: None).evict(1)


def test_rights_in_effect_are_seen_in_any_thread():
    if os.geteuid() != 0:
        pytest.skip("needs rights to show")
    code = """
import sys, threading, time
from atoll.jail import syscalls
if sys.argv[1] == 'thread':
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
syscalls.drop_capabilities()
print('there', flush=True)
time.sleep(60)
"""
    for kind, expected in (("thread", True), ("alone", False)):
        command = [sys.executable, "-c", code, kind]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        assert house.is_awake(process.pid) is expected
        process.kill()
        process.wait()
        process.stdout.close()
    assert not house.is_awake(process.pid)
