"""Faults around the daemon: it, its client and its supervisor killed and stopped, its calls failing.

A client that has lost its daemon is told in time; a client that is gone takes along its own
sessions and no other's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
import roles
from faulting import fault
from test_failing_calls import ERRORS
from world import OPERATIONS, answer

import atoll

pytestmark = pytest.mark.asyncio(loop_scope="module")
ASKED = ("open", "execute", "fork", "save", "destroy")
LOST = [("SIGKILL", "execute"), ("SIGSTOP", "execute"), ("SIGKILL", "open"), ("SIGSTOP", "destroy")]
"""The sample of what happens to a daemon before what a client asks of it."""
PAIRS = [(how, operation) for how in ("SIGKILL", "SIGSTOP") for operation in ASKED]
CLIENT = """
import sys, atoll
box = atoll.create_sandbox(backend="daemon")
box.execute("x = 1")
print("ready", flush=True)
box.execute("import time; time.sleep(60)") if sys.argv[1] == "execute" else sys.stdin.read()
"""


class Daemon:
    """A daemon with a bystander: a session on another connection, that of the blocking API."""

    def __init__(self, folder: str) -> None:
        self.socket = Path(folder) / "faults.sock"
        self.pid = 0
        self._bystander: atoll.SyncSandbox | None = None

    async def start(self) -> None:
        """Start the daemon, or one in its place; the bystander has a variable then."""
        self.pid = await asyncio.to_thread(roles.start_daemon, self.socket)
        self._bystander = await asyncio.to_thread(atoll.create_sandbox, backend="daemon")
        assert (await asyncio.to_thread(self._bystander.execute, "kept = 41")).success

    async def open(self) -> atoll.BaseSandbox:
        return await atoll.aio.create_sandbox(backend="daemon", timeout_ms=20_000)

    async def check(self) -> None:
        """Assert that the bystander has its variable, and that it is the only session left."""
        assert self._bystander is not None
        result = await answer(asyncio.to_thread(self._bystander.execute, "kept"))
        assert isinstance(result, atoll.SandboxResult), result
        assert result.value == 41
        await until(lambda: roles.sessions_of_daemon(self.socket) == 1)

    async def stop(self) -> None:
        with contextlib.suppress(atoll.AtollError):
            await asyncio.to_thread(self._bystander.destroy)
        await asyncio.to_thread(roles.stop_daemon, self.socket)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon() -> AsyncIterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="atoll-test-") as folder:
        one = Daemon(folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ATOLL_DAEMON_SOCKET", str(one.socket))
            await one.start()
        yield one
        await one.stop()


@pytest.fixture(autouse=True)
def found(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, no_foreign_daemon: None) -> None:
    """Sandboxes of these tests find this daemon."""
    monkeypatch.setenv("ATOLL_DAEMON_SOCKET", str(daemon.socket))


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("busy", ["execute", "idle"])
async def test_a_client_is_lost(daemon: Daemon, how: str, busy: str):
    environment = os.environ | {"ATOLL_DAEMON_SOCKET": str(daemon.socket)}
    client = subprocess.Popen(  # noqa: ASYNC220 - it takes a moment
        [sys.executable, "-c", CLIENT, busy],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert await asyncio.to_thread(client.stdout.readline) == b"ready\n"
    client.send_signal(signal.Signals[how])
    box = await daemon.open()  # others are served, whether it is stopped or gone
    assert (await box.execute("6 * 7")).value == 42
    await box.destroy()
    client.kill()
    client.communicate()
    await daemon.check()


@pytest.mark.parametrize("operation", ASKED)
async def test_a_call_fails_in_the_daemon(daemon: Daemon, operation: str):
    box = await daemon.open()
    with fault(daemon.pid, "any", 0, "count") as counted:
        await close(box, await OPERATIONS[operation](daemon, box))
        kinds = counted.end()
    for kind in kinds:
        box = await daemon.open()
        with fault(daemon.pid, kind, 1, ERRORS[kind]):
            answered = await OPERATIONS[operation](daemon, box)
            assert "took longer than" not in str(answered), "it was answered only at the timeout"
            await close(box, answered)
        await daemon.check()


@pytest.mark.parametrize(("how", "operation"), LOST)
async def test_the_daemon_is_lost(daemon: Daemon, short_waits: None, how: str, operation: str):
    await _lose(daemon, how, operation)


@pytest.mark.long
@pytest.mark.parametrize(("how", "operation"), [pair for pair in PAIRS if pair not in LOST])
async def test_the_daemon_is_lost_before_any(
    daemon: Daemon, short_waits: None, how: str, operation: str
):
    await _lose(daemon, how, operation)


async def _lose(daemon: Daemon, how: str, operation: str) -> None:
    """Lose the daemon before a call: the caller is told, and nothing of the daemon is left."""
    box = await daemon.open()
    supervisor = roles.supervisor(daemon.pid)
    below = roles.descendants(daemon.pid)
    os.kill(daemon.pid, signal.Signals[how])
    told = await OPERATIONS[operation](daemon, box)
    assert operation == "destroy" or isinstance(told, atoll.AtollError), told
    await close(box)
    os.kill(daemon.pid, signal.SIGKILL)
    await until(lambda: not [pid for pid in below if roles.state(pid) not in ("", "Z")])
    await until(lambda: not roles.control_groups({supervisor}))
    await daemon.start()
    await daemon.check()


async def close(*boxes: object) -> None:
    for box in boxes:
        if isinstance(box, atoll.BaseSandbox):
            await answer(box.destroy())


async def until(true: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for something to come true that tells nobody."""
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(true):  # noqa: ASYNC110 - the kernel, or a daemon
            await asyncio.sleep(0.02)
