"""Ports of guests that were started, forked and cloned, by root and by an ordinary user."""

from __future__ import annotations

import os
import signal

import pytest
from ordinary_user import python_for_user, run_as_user

from atoll import PortError, SandboxLostError
from atoll.config import SandboxConfig
from atoll.jail.supervisor.client import supervisor

SERVER = """
import socket, threading
def accept(listener):
    while True:
        connection, _ = listener.accept()
        connection.sendall(b'from %d' % listener.getsockname()[1])
        connection.close()
def serve(port):
    listener = socket.create_server(('127.0.0.1', port), backlog=600)
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
serve(8000)
"""
PROGRAM = f"""
import asyncio
from atoll import aio
from atoll.config import SandboxConfig
from atoll.hosting.pool.pool import Pool

async def show(name, box, port):
    with await box.connect(port) as connection:
        print(name, [one.number for one in await box.ports()], connection.recv(50).decode())

async def main():
    async with aio.create_sandbox(backend="native") as box:
        await box.execute({SERVER!r})
        await show("started", box, 8000)
    async with Pool() as pool:
        async with await pool.open(SandboxConfig(preload="bare")) as box:
            await box.execute({SERVER!r})
            await show("forked", box, 8000)
            async with await box.fork() as clone:
                await clone.execute("serve(8001)")
                await show("cloned", clone, 8001)

asyncio.run(main())
"""


def helpers():
    """The supervisor's processes in the network of a jail."""
    found = []
    for pid in os.listdir("/proc"):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                parent = stat.read().rpartition(")")[2].split()[1]
            spaces = [
                os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}")
                for kind in ("net", "pid")
            ]
        except OSError:
            continue
        if parent == str(supervisor.pid) and spaces == [False, True]:
            found.append(int(pid))
    return found


async def said(box, port):
    with await box.connect(port) as connection:
        return connection.recv(50)


@pytest.mark.skipif(os.geteuid() != 0, reason="all tests run as an ordinary user already")
def test_an_ordinary_user_reaches_guests_that_were_started_forked_and_cloned():
    done = run_as_user(python_for_user(), "-c", PROGRAM)
    assert done.stdout.splitlines() == [
        "started [8000] from 8000",
        "forked [8000] from 8000",
        "cloned [8000, 8001] from 8001",
    ], done.stderr


async def test_one_helper_serves_a_guest_and_ends_with_it(pool):
    box = await pool.open(SandboxConfig(preload="bare"))
    await box.execute(SERVER)
    assert helpers() == []
    for _ in range(20):
        assert await said(box, 8000) == b"from 8000"
    assert len(helpers()) == 1
    await box.destroy()
    assert helpers() == []


async def test_a_helper_that_was_killed_is_replaced(pool):
    async with await pool.open(SandboxConfig(preload="bare")) as box:
        await box.execute(SERVER)
        assert await said(box, 8000) == b"from 8000"
        os.kill(helpers()[0], signal.SIGKILL)
        with pytest.raises(SandboxLostError, match="the guest's network cannot be reached"):
            while True:  # the signal may arrive after a call or two
                await said(box, 8000)
        assert await said(box, 8000) == b"from 8000"
        assert (await box.execute("1 + 1")).value == 2


async def test_ports_of_a_guest_that_was_lost_are_gone_and_the_next_has_its_own(pool):
    async with await pool.open(SandboxConfig(preload="bare")) as box:
        await box.execute(SERVER)
        url = await box.port(8000)
        assert (await box.execute("import os; os._exit(3)")).state_lost
        assert await box.ports() == ()
        with pytest.raises(PortError):
            await box.connect(8000)
        await box.execute(SERVER)
        assert await said(box, 8000) == b"from 8000"
        assert await box.port(8000) == url


async def test_a_server_that_accepts_nothing_is_given_up(pool, monkeypatch):
    monkeypatch.setattr("atoll.jail.supervisor.guest_network.CONNECT_SECONDS", 0.3)
    async with await pool.open(SandboxConfig(preload="bare")) as box:
        await box.execute("import socket; s = socket.create_server(('127.0.0.1', 8000), backlog=0)")
        kept = []
        with pytest.raises(PortError, match=r"did not accept a connection within 0\.3 s"):
            while len(kept) < 50:
                kept.append(await box.connect(8000))
        for connection in kept:
            connection.close()


async def test_a_guest_with_many_listeners_and_connections_is_listed_within_bounds(pool):
    async with await pool.open(SandboxConfig(preload="bare")) as box:
        code = (
            "import socket\n"
            "kept = [socket.create_server(('127.0.0.1', 20000 + n)) for n in range(100)]\n"
            "kept += [socket.create_connection(('127.0.0.1', 20000 + n)) for n in range(50)]\n"
        )
        assert (await box.execute(code)).error is None
        numbers = [port.number for port in await box.ports()]
        assert numbers == list(range(20000, 20100))
