"""Who lives in a jail together: told apart by their mounts, found wherever they hide."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from atoll.jail.measure import meter
from atoll.jail.supervisor import shared_jail
from atoll.jail.supervisor.shared_jail import SharedJail
from atoll.jail.walls import syscalls
from atoll.jail.zygote.forked_guest import ForkedGuestRecord

IN_MOUNTS_OF_ITS_OWN = """
import os, sys, time
from atoll.jail.walls import syscalls
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
        return [
            pid for pid in find(roots) if pid not in known and shared_jail.parent_of(pid) in roots
        ]

    monkeypatch.setattr(meter, "processes", processes)


@pytest.fixture
def session():
    """A process in a mount namespace of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", IN_MOUNTS_OF_ITS_OWN], stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def make(**sessions: int) -> SharedJail:
    """A house of this test's process, with tenants by their mount namespaces."""
    one = SharedJail(lambda: [os.getpid()], lambda: None, lambda: None)
    for number in sessions.values():
        one.sessions.add(_Session(number))
    return one


class _Session(SimpleNamespace):
    def __init__(self, space: int, clone_in_progress: object = None) -> None:
        super().__init__(
            mount_namespace=space, clone_in_progress=clone_in_progress, started_pids=list
        )

    def __hash__(self) -> int:
        return id(self)


def test_a_process_that_is_gone_has_no_namespace_and_no_parent(session):
    assert shared_jail.namespace_of(session.pid) not in (0, shared_jail.namespace_of(os.getpid()))
    assert shared_jail.parent_of(session.pid) == os.getpid()
    session.kill()
    session.wait()
    assert (shared_jail.namespace_of(session.pid), shared_jail.parent_of(session.pid)) == (0, 0)


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
        assert shared_jail.parent_of(pid) == os.getpid()


def test_who_has_left_is_killed_and_nobody_else(session):
    own = shared_jail.namespace_of(os.getpid())
    other = subprocess.Popen(["sleep", "60"])
    one = make(own=own)
    assert not one.evict(shared_jail.namespace_of(session.pid))
    assert session.wait(5) == -signal.SIGKILL
    try:
        assert one.evict(12345)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_what_is_in_nobodys_mounts_is_killed_too(session):
    one = make(own=shared_jail.namespace_of(os.getpid()))
    assert not one.evict(12345)
    assert session.wait(5) == -signal.SIGKILL


def _clone(pid: int) -> SimpleNamespace:
    return SimpleNamespace(guest_pid=lambda: pid)


def test_a_clone_on_its_way_is_spared(session):
    one = SharedJail(lambda: [os.getpid()], lambda: None, lambda: None)
    one.sessions.add(_Session(shared_jail.namespace_of(os.getpid()), clone_in_progress=_clone(0)))
    assert one.evict(12345)
    assert session.poll() is None


def test_a_clone_that_got_the_number_of_the_namespace_that_is_gone_is_spared(session):
    """The kernel gives the lowest free number: most often that of the session that left last."""
    number = shared_jail.namespace_of(session.pid)
    begun = make(own=shared_jail.namespace_of(os.getpid()))
    begun.sessions.add(_Session(1, clone_in_progress=_clone(session.pid)))
    assert not begun.evict(number)  # so it is looked at again
    assert make(own=shared_jail.namespace_of(os.getpid()), clone=number).evict(number)
    assert session.poll() is None


def test_the_last_one_to_leave_ends_the_jail():
    ends: list[int] = []
    one = SharedJail(list, lambda: ends.append(1), lambda: None)
    first, second = _Session(1), _Session(2)
    one.sessions |= {first, second}
    one.leave(first)
    assert ends == []
    one.leave(second)
    assert ends == [1]


def test_a_shared_jail_without_processes_has_nobody_to_kill():
    assert SharedJail(list, lambda: None, lambda: None).evict(1)


def test_rights_in_effect_are_seen_in_any_thread():
    if os.geteuid() != 0:
        pytest.skip("needs rights to show")
    code = """
import sys, threading, time
from atoll.jail.walls import syscalls
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
        assert shared_jail.has_capabilities(process.pid) is expected
        process.kill()
        process.wait()
        process.stdout.close()
    assert not shared_jail.has_capabilities(process.pid)


def test_the_status_of_a_process_that_another_has_reaped_is_known_where_the_kernel_keeps_it():
    process = subprocess.Popen([sys.executable, "-c", "import os; os._exit(3)"])
    pidfd = os.pidfd_open(process.pid)
    try:
        process.wait()
        kept = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)
        assert syscalls.exit_status(pidfd) == (3 << 8 if kept else None)
    finally:
        os.close(pidfd)


def test_a_clone_with_a_group_is_looked_for_only_once_the_group_is_empty(monkeypatch):
    """A look at all processes of a jail takes longer than one at the group, which starts no more."""
    looks: list[str] = []
    jail = SharedJail(list, lambda: None, lambda: None)
    monkeypatch.setattr(jail, "_members", lambda: looks.append("look") or [])
    session = object.__new__(ForkedGuestRecord)
    session.started = set()
    session.shared_jail, session.mount_namespace = jail, 12345
    session.cgroup = SimpleNamespace(emptied=lambda: bool(looks))
    assert not session._killed_in_shared_jail()
    assert looks == []
    session.cgroup = SimpleNamespace(emptied=lambda: True)
    assert session._killed_in_shared_jail()
    assert len(looks) == 2
    session.cgroup = None
    assert session._killed_in_shared_jail()
    assert len(looks) == 2 + 1 + shared_jail.SCANS
