"""A host that forks: a sandbox stays its parent's, and the child is told so instead of waiting."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from atoll.backends.wasm import warm_workers
from atoll.jail.supervisor.client import supervisor

FORKS = """
import os, sys, atoll
box = atoll.create_sandbox(backend="native")
box.execute("x = 1")
pid = os.fork()
if pid == 0:
    uses = {
        "execute": lambda: box.execute("x"),
        "get_variable": lambda: box.get_variable("x"),
        "files": lambda: box.files.ls("/app"),
        "fork": lambda: box.fork(),
        "cancel": lambda: box.cancel(),
    }
    for name, use in uses.items():
        try:
            use()
        except atoll.SandboxLostError as exc:
            assert "forked" in str(exc), exc
            continue
        os._exit(2)
    box.destroy()
    with atoll.create_sandbox(backend="native") as own:
        os._exit(0 if own.execute("6 * 7").value == 42 else 3)
_, status = os.waitpid(pid, 0)
assert box.execute("x").value == 1, "the parent's is untouched"
box.destroy()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.spec("R0.20")
def test_a_blocking_sandbox_used_after_a_fork_raises():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


HELD = """
import os, sys, threading, atoll
from atoll.concurrency import forks
from atoll.jail.supervisor.client import supervisor
with atoll.create_sandbox(backend="native") as box:
    box.execute("1")
locks = {supervisor._lock, *forks._locks}
held, release = threading.Event(), threading.Event()
def hold():
    for lock in locks:
        lock.acquire()
    held.set()
    release.wait()
    for lock in locks:
        lock.release()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
pid = os.fork()
if pid == 0:
    with atoll.create_sandbox(backend="native") as own:
        os._exit(0 if own.execute("6 * 7").value == 42 else 3)
release.set()
holder.join()
_, status = os.waitpid(pid, 0)
with atoll.create_sandbox(backend="native") as box:
    assert box.execute("1").value == 1, "the parent's supervisor is untouched"
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_fork_while_another_thread_holds_the_locks_can_open_sandboxes():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HELD], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("use", ["take", "discard"])
def test_a_fork_sends_nothing_to_the_zygote_of_its_parent(monkeypatch, use):
    zygotes: list[socket.socket] = []

    def ask(_spec: object, _fds: list[int]) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        zygotes.append(theirs)
        return ours

    monkeypatch.setattr(supervisor, "ask", ask)
    workers = warm_workers.WarmWorkers(lambda _name: None)
    workers._ensure()
    if (pid := os.fork()) == 0:
        try:
            workers._ensure() if use == "take" else workers.discard(whole=True)
            os._exit(0 if (workers._zygote_host is None) == (use == "discard") else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    (zygote,) = zygotes
    zygote.setblocking(False)
    with pytest.raises(BlockingIOError):
        zygote.recv(1000)
    zygote.close()
    workers._zygote_host.close()
