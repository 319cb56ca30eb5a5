"""Descriptors for a guest: put into it when it asks, in order, and only what is meant for it."""

from __future__ import annotations

import ctypes
import errno
import os
import time

import pytest

import atoll
from atoll.jail.supervisor.client import supervisor
from atoll.jail.supervisor.shared_jail import MAX_REFUSALS

ASK = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); fd = libc.setns(-1, 0); (fd, ctypes.get_errno())"
SOCKETS = "import os; [os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}') and 'socket' in os.readlink(f'/proc/self/fd/{fd}')]"


def test_nothing_is_given_to_a_guest_that_asks_unasked():
    with atoll.create_sandbox(backend="native") as box:
        assert box.execute(ASK).value == (-1, errno.EPERM)


def test_after_many_refusals_the_kernel_refuses_and_the_guest_lives():
    with atoll.create_sandbox(backend="native") as box:
        loop = f"{ASK}\nseen = []\nfor n in range({MAX_REFUSALS} + 50): libc.setns(-1, 0); seen.append(ctypes.get_errno())"
        assert box.execute(loop).success
        assert box.execute("seen[-1]").value == errno.ENOSYS
        assert box.execute("6 * 7").value == 42
        with pytest.raises(atoll.AtollError):
            box.save()
        assert box.execute("6 * 7").success


def test_no_socket_is_open_in_a_guest():
    with atoll.create_sandbox(backend="native", context="c" * 100_000) as box:
        assert box.execute(SOCKETS).value == []


def test_a_real_setns_is_refused():
    code = "import os, ctypes; libc = ctypes.CDLL(None, use_errno=True)\nfd = os.open('/proc/self/ns/mnt', 0); (libc.setns(fd, 0), ctypes.get_errno())"
    with atoll.create_sandbox(backend="native") as box:
        assert box.execute(code).value == (-1, errno.EPERM)


def test_a_guest_that_asks_for_what_is_on_its_way_has_it_for_itself_alone():
    thief = """
import os, threading, ctypes
libc = ctypes.CDLL(None, use_errno=True)
taken = []
def steal():
    for _ in range(20):
        fd = libc.setns(-1, 0)
        if fd >= 0: taken.append(fd)
thread = threading.Thread(target=steal); thread.start(); thread.join()
"""
    with (
        atoll.create_sandbox(backend="native") as one,
        atoll.create_sandbox(backend="native") as two,
    ):
        one.execute(thief)
        two.execute("x = 1")
        assert two.save()
        assert one.execute("taken").value == []


def test_what_was_never_asked_for_is_closed_with_the_sandbox():
    def open_files() -> int:
        return len(os.listdir(f"/proc/{supervisor.pid}/fd"))

    with atoll.create_sandbox(backend="native") as box:
        box.execute("pass")
    before = open_files()
    with atoll.create_sandbox(backend="native") as box:
        read, write = os.pipe()
        box._portal.run(_give(box.inner, read))
        os.close(read)
        os.close(write)
    end = time.monotonic() + 30
    while open_files() > before and time.monotonic() < end:
        time.sleep(0.02)
    assert open_files() <= before


async def _give(box, fd: int) -> None:
    box._guest.lease.give(fd)


def test_the_call_has_no_other_meaning_here():
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.setns(-1, 0) == -1
    assert ctypes.get_errno() == errno.EBADF
