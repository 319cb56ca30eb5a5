"""A daemon that is there and does not answer: every request ends, and says that all is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time

import pytest
from daemon_kit import open_notebook

import atoll
from atoll.backends.daemon import connection as connections
from atoll.guest.shared import rpc
from atoll.rpc import connection as rpc_connection
from atoll.rpc.connection import Peer
from atoll.rpc.passed_fds import Reply

SILENT = 0.3
LOST = r"the daemon has not answered for \d"
REQUESTS = {
    "execute": lambda box: box.execute("1", timeout_ms=100),
    "shell": lambda box: box.shell("true"),
    "validate_code": lambda box: box.validate_code("1"),
    "get_variable": lambda box: box.get_variable("x"),
    "has_variable": lambda box: box.has_variable("x"),
    "variables": lambda box: box.variables(),
    "set_variable": lambda box: box.set_variable("x", 1),
    "cancel": lambda box: box.cancel(),
    "fork": lambda box: box.fork(),
    "checkpoint": lambda box: box.checkpoint(),
    "rollback": lambda box: box.rollback("mark"),
    "branches": lambda box: box.branches(),
    "save": lambda box: box.save(),
    "files": lambda box: box.files.read("/app/x"),
    "initialize": lambda box: box.initialize("again"),
    "large": lambda box: box.set_variable("x", "y" * 8_000_000),
}


class HalfDead(Peer):
    """Answers no pings."""

    async def _answer_call(self, message):
        if message["method"] == "ping":
            await asyncio.Event().wait()
        await super()._answer_call(message)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(connections, "SILENT_SECONDS", SILENT)


@pytest.fixture
async def half_dead(tmp_path, monkeypatch):
    """Listens, opens a session when asked, and says nothing more."""
    path, peers = tmp_path / "half.sock", []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.setblocking(False)

    async def serve(_method, _params, passed_fds):
        passed_fds.close()
        if len(peers) > 1 or opened:
            await asyncio.Event().wait()
        opened.append(True)
        return Reply({"isolation": "jailed", "context_shared": False})

    def accept():
        sock, _ = listener.accept()
        peers.append(HalfDead(sock, serve, lambda *_: None, lambda _: None))

    opened = []
    asyncio.get_running_loop().add_reader(listener, accept)
    monkeypatch.setenv("ATOLL_DAEMON_SOCKET", str(path))
    yield opened
    asyncio.get_running_loop().remove_reader(listener)
    listener.close()
    for peer in peers:
        peer.end("done")


@pytest.mark.parametrize("request_it", REQUESTS.values(), ids=REQUESTS)
async def test_every_request_ends(half_dead, request_it):
    async with asyncio.timeout(20):
        box = await atoll.aio.create_sandbox(backend="daemon")
        with pytest.raises(atoll.SandboxLostError, match=LOST):
            await request_it(box)
        await box.destroy()


async def test_a_sandbox_is_not_opened_for_ever(half_dead):
    half_dead.append("nothing is answered from now on")
    async with asyncio.timeout(20):
        with pytest.raises(atoll.SandboxLostError, match=LOST):
            await atoll.aio.create_sandbox(backend="daemon")


@pytest.mark.parametrize("noise", [b" ", rpc.notification("lines", {})], ids=["part", "lines"])
async def test_a_daemon_that_says_much_and_answers_nothing_is_given_up(
    tmp_path, monkeypatch, noise
):
    monkeypatch.setattr(rpc_connection, "NOISY_CHECKS", 2)
    ours, theirs = socket.socketpair()
    link, loop = connections.DaemonConnection(ours, tmp_path), asyncio.get_running_loop()

    def babble():
        if not link.peer.ended:
            theirs.send(noise)
            loop.call_later(SILENT / 20, babble)

    babble()
    with pytest.raises(atoll.SandboxLostError, match=LOST):
        await asyncio.wait_for(link.peer.call("execute", {}), 20)
    theirs.close()


async def test_destroy_ends_though_nobody_answers(half_dead):
    async with asyncio.timeout(20):
        box = await atoll.aio.create_sandbox(backend="daemon")
        await box.destroy()


async def test_a_daemon_that_works_for_long_is_not_given_up(serve):
    await serve(open_notebook)
    async with atoll.aio.create_sandbox(backend="daemon") as box:
        cell = asyncio.create_task(box.execute("wait"))
        await asyncio.sleep(3 * SILENT)
        assert not cell.done()
        await box.cancel()
        assert (await cell).success


async def test_a_stopped_daemon_loses_its_sandboxes(own_daemon, monkeypatch):
    socket = await asyncio.to_thread(own_daemon.start)
    monkeypatch.setenv("ATOLL_DAEMON_SOCKET", str(socket))
    async with asyncio.timeout(60):
        box = await atoll.aio.create_sandbox(backend="daemon", preload="bare")
        os.kill(own_daemon.pid, signal.SIGSTOP)
        try:
            with pytest.raises(atoll.SandboxLostError, match=LOST):
                await box.execute("1", timeout_ms=100)
            with pytest.raises(atoll.AtollError):
                await atoll.aio.create_sandbox(backend="daemon")
        finally:
            os.kill(own_daemon.pid, signal.SIGCONT)
        async with atoll.aio.create_sandbox(backend="daemon", preload="bare") as again:
            assert (await again.execute("1")).value == 1


async def test_what_was_never_written_is_lost_as_well(half_dead):
    """More than the socket's buffer and the outbox take: the call waits for room, and ends too."""
    async with asyncio.timeout(20):
        box = await atoll.aio.create_sandbox(backend="daemon")
        text = "y" * (rpc.MAX_MESSAGE_BYTES // 2)
        calls = [box.set_variable("x", text) for _ in range(3)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(end) for end in ends] == [atoll.SandboxLostError] * 3
        await box.destroy()


async def test_a_client_whose_own_loop_was_blocked_does_not_give_up(serve, monkeypatch):
    """It has asked for no answer meanwhile: that none came proves nothing."""
    silent = 1.5  # in which a daemon answers on a busy machine too
    monkeypatch.setattr(connections, "SILENT_SECONDS", silent)
    await serve(open_notebook)
    async with atoll.aio.create_sandbox(backend="daemon") as box:
        cell = asyncio.create_task(box.execute("wait"))
        await asyncio.sleep(silent / 4)
        time.sleep(1.2 * silent)  # noqa: ASYNC251 - as a callback that blocks does
        await asyncio.sleep(1.2 * silent)
        assert not cell.done()
        await box.cancel()
        assert (await cell).success
