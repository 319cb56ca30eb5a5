"""Clients that mean no good, or do no good: the daemon drops them and serves the others."""

from __future__ import annotations

import array
import asyncio
import contextlib
import gc
import json
import os
import socket
import time
from pathlib import Path

import pytest
from daemon_kit import open_notebook, read_to_end, until

import atoll
from atoll.guest.shared import rpc
from atoll.rpc import connection as peers
from atoll.rpc.peer import MAX_OPEN_CALLS
from atoll.sandbox.wire import options

OPEN = {"config": options.to_wire(atoll.SandboxConfig())}


def line(ident, method, **params):
    return rpc.request(str(ident), method, params)


async def still_serves(daemon):
    async with atoll.aio.create_sandbox(backend="daemon") as box:
        assert (await box.execute("x = 1")).success


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.parametrize(
    "data",
    [
        b"garbage\n",
        b"\x00\xff\xfe\n",
        b"{}\n",
        b"[1]\n",
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
        b'{"jsonrpc":"2.0","id":"1","method":"ping","params":[]}\n',
        b'{"jsonrpc":"2.0","id":"1","method":"ping","params":{"fds":1}}\n',
        b'{"jsonrpc":"2.0","id":"1","method":"ping","params":{"fds":-1}}\n',
        b'{"jsonrpc":"2.0","id":"1","method":"ping","params":{"fds":"x"}}\n',
        b"[" * 100_000 + b"\n",
        b'{"a":' * 1000 + b"\n",
        b"\n",
    ],
)
async def test_garbage_ends_its_connection_and_no_other(serve, data):
    daemon = await serve(open_notebook)
    sock = daemon.raw()
    await asyncio.get_running_loop().sock_sendall(sock, data)
    assert await read_to_end(sock) == b""
    sock.close()
    await still_serves(daemon)


async def test_a_huge_message_is_refused_before_it_is_kept(serve):
    daemon = await serve(open_notebook)
    sock, before = daemon.raw(), pages()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        for _ in range(64):
            await asyncio.get_running_loop().sock_sendall(sock, b"x" * (1 << 20))
    sock.close()
    gc.collect()
    assert (pages() - before) * 4096 < 3 * rpc.MAX_MESSAGE_BYTES
    await still_serves(daemon)


async def test_a_message_that_never_ends_is_dropped(serve):
    daemon = await serve(open_notebook, message_seconds=0.1, idle_seconds=0.2)
    sock = daemon.raw()
    await asyncio.get_running_loop().sock_sendall(sock, b'{"jsonrpc":')
    idle = daemon.raw()
    assert await read_to_end(sock) == b""
    sock.close()
    await asyncio.get_running_loop().sock_sendall(idle, line(1, "stats"))
    answer = json.loads(await asyncio.get_running_loop().sock_recv(idle, 1 << 16))
    assert answer["result"]["pid"] == os.getpid(), "one that says nothing at all is let be"
    idle.close()


async def test_messages_that_always_overlap_are_no_slow_one(serve):
    daemon = await serve(open_notebook, message_seconds=0.2, idle_seconds=0.2)
    sock = daemon.raw()
    loop = asyncio.get_running_loop()
    whole = line(1, "ping")
    await loop.sock_sendall(sock, whole[:20])
    for _ in range(30):
        await asyncio.sleep(0.02)
        await loop.sock_sendall(sock, whole[20:] + whole[:20])
        assert await loop.sock_recv(sock, 1 << 16)
    sock.close()


async def test_a_slow_but_whole_message_is_served(serve):
    daemon = await serve(open_notebook)
    sock = daemon.raw()
    for byte in line(1, "ping"):
        await asyncio.get_running_loop().sock_sendall(sock, bytes([byte]))
    answer = await asyncio.get_running_loop().sock_recv(sock, 1 << 16)
    assert json.loads(answer)["id"] == "1"
    sock.close()


async def test_bad_requests_are_answered_and_the_connection_lives(serve):
    daemon = await serve(open_notebook)
    link = await daemon.link()
    call = link.peer.call
    for method, params, kind in [
        ("nothing", {}, atoll.SandboxError),
        ("initialize", {}, atoll.ConfigError),
        ("initialize", {**OPEN, "session": ""}, atoll.ConfigError),
        ("initialize", {**OPEN, "session": "x" * 65}, atoll.ConfigError),
        ("initialize", {"session": "a", "config": []}, atoll.ConfigError),
        ("initialize", {"session": "a", "config": {}}, atoll.ConfigError),
        (
            "initialize",
            {"session": "a", "config": {**OPEN["config"], "tools": [1]}},
            atoll.ConfigError,
        ),
        (
            "initialize",
            {**OPEN, "session": "a", "context": {"value": {"$": "no"}}},
            atoll.ConfigError,
        ),
        ("initialize", {**OPEN, "session": "a", "context": {"width": 1}}, atoll.ConfigError),
        ("initialize", {**OPEN, "session": "a", "state": True}, atoll.ConfigError),
        ("attach", {}, atoll.ConfigError),
        ("execute", {"code": "x"}, atoll.SandboxClosedError),
    ]:
        with pytest.raises(kind):
            await call(method, params)
    session = "mine"
    await call("initialize", {**OPEN, "session": session})
    for params in (
        {},
        {"code": 1},
        {"code": "x", "timeout_ms": "1"},
        {"code": "x", "key": "k" * 999},
    ):
        with pytest.raises(atoll.ConfigError):
            await call("execute", {"session": session, **params})
    assert "result" in (await call("execute", {"session": session, "code": "x"})).value
    link.peer.end("done")


async def test_descriptors_that_nobody_asked_for_are_closed(serve):
    daemon = await serve(open_notebook)
    sock = daemon.raw()
    await until(lambda: daemon.server.stats()["connections"] == 1)
    before = descriptors()
    fds = array.array("i", [0, 1])
    for ident in range(20):
        sock.sendmsg([line(ident, "ping")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        await asyncio.get_running_loop().sock_recv(sock, 1 << 16)
    announced = {"fds": 2, "session": "none", "code": ""}
    sock.sendmsg([line("x", "execute", **announced)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    assert b"no such session" in await asyncio.get_running_loop().sock_recv(sock, 1 << 16)
    await until(lambda: descriptors() == before)
    many = array.array("i", [0] * 100)
    sock.sendmsg([b'{"jsonrpc"'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, many)])
    assert await read_to_end(sock) == b""
    sock.close()
    await until(lambda: descriptors() == before - 3)  # both ends, and the hold on its process


async def test_who_does_not_read_is_dropped_and_costs_little(serve):
    daemon = await serve(open_notebook)
    sock, before = daemon.raw(), pages()
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, line(0, "initialize", session="1", **OPEN))
    await loop.sock_recv(sock, 1 << 16)
    big = line("x", "execute", session="1", code=f"x = {json.dumps('y' * 4_000_000)}")
    await loop.sock_sendall(sock, big)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        for ident in range(1000):
            await asyncio.wait_for(
                loop.sock_sendall(sock, line(ident, "execute", session="1", code="x")), 5
            )
    assert (pages() - before) * 4096 < 3 * peers.MAX_UNREAD
    sock.close()
    await until(lambda: daemon.server.stats()["sessions"] == 0)


@pytest.mark.long
async def test_a_guest_that_prints_for_ever_to_a_deaf_client_is_bounded(serve):
    daemon = await serve()
    sock = daemon.raw()
    loop = asyncio.get_running_loop()
    config = atoll.SandboxConfig(on_stdout=print, max_output_length=1 << 30)
    await loop.sock_sendall(
        sock, line(0, "initialize", session="1", config=options.to_wire(config))
    )
    await loop.sock_recv(sock, 1 << 16)
    await loop.sock_sendall(
        sock, line(1, "execute", session="1", code="while True: print('y' * 999)")
    )
    await until(lambda: daemon.server.stats()["connections"] == 0, 30)
    await until(lambda: daemon.server.stats()["executing"] == 0)
    sock.close()


async def test_too_many_calls_at_once_are_refused(serve):
    daemon = await serve(open_notebook)
    link = await daemon.link()
    session = "mine"
    await link.peer.call("initialize", {**OPEN, "session": session})
    params = {"session": session, "code": "wait"}
    calls = [
        asyncio.create_task(link.peer.call("execute", params)) for _ in range(MAX_OPEN_CALLS + 1)
    ]
    with pytest.raises(atoll.BusyError, match="too many calls"):
        await calls[-1]
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    await until(lambda: daemon.server.stats()["executing"] == 0)
    link.peer.end("done")


@pytest.mark.long
async def test_thousands_of_connections_leave_nothing(serve):
    daemon = await serve(open_notebook)
    for number in range(3200):
        if number == 200:
            await until(lambda: daemon.server.stats()["connections"] == 0)
            gc.collect()
            before, size = descriptors(), pages()
        sock = daemon.raw()
        if number % 3 == 0:
            await asyncio.get_running_loop().sock_sendall(
                sock, line(0, "initialize", session="1", **OPEN)
            )
        if number % 3 == 1:
            await asyncio.get_running_loop().sock_sendall(sock, b'{"half')
        if number % 5 == 0:
            await asyncio.sleep(0.001)
        sock.close()
    await until(lambda: daemon.server.stats()["connections"] == 0)
    await until(lambda: daemon.server.stats()["sessions"] == 0)
    gc.collect()
    assert descriptors() <= before
    assert (pages() - size) * 4096 < 16 << 20


async def test_connections_are_limited(serve):
    daemon = await serve(open_notebook, max_connections=3)
    held = [await daemon.link() for _ in range(3)]
    for link in held:
        await link.peer.call("ping", {})
    sock = daemon.raw()
    assert await read_to_end(sock) == b""
    sock.close()
    for link in held:
        link.peer.end("done")
    await until(lambda: daemon.server.stats()["connections"] == 0)
    await still_serves(daemon)


async def test_no_descriptor_left_is_waited_out(serve):
    daemon = await serve(open_notebook)
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    sock, taken = socket.socket(socket.AF_UNIX), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (sock.fileno() + 1, limits[1]))
    try:
        sock.connect(str(daemon.path))
        sock.setblocking(False)
        started = time.thread_time()
        for _ in range(50):
            with contextlib.suppress(OSError):  # what other threads of this process close is taken
                taken.append(os.dup(0))
            await asyncio.sleep(0.01)
        assert time.thread_time() - started < 0.3, "it spins"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)
    await asyncio.get_running_loop().sock_sendall(sock, line(1, "ping"))
    assert await asyncio.get_running_loop().sock_recv(sock, 1 << 16)
    sock.close()


async def test_a_daemon_of_another_user_is_not_spoken_to(serve, monkeypatch):
    await serve(open_notebook)
    own = os.geteuid()
    monkeypatch.setattr("atoll.backends.daemon.connection.os.geteuid", lambda: own + 1)
    with pytest.raises(atoll.BackendUnavailableError, match=f"it belongs to user {own}"):
        await atoll.aio.create_sandbox(backend="daemon")


async def test_memory_files_that_nobody_reads_do_not_pile_up(serve):
    """Each answer takes a moment of the socket's buffer and a megabyte of the host's memory."""
    daemon = await serve(open_notebook)
    taken = [await _room_for_unread_answers(daemon) for _ in range(3)]
    assert min(taken) < 100 << 20  # the least: other tests take room too


async def _room_for_unread_answers(daemon):
    loop = asyncio.get_running_loop()
    with contextlib.closing(daemon.raw()) as sock:
        await loop.sock_sendall(sock, line(0, "initialize", session="1", **OPEN))
        await loop.sock_recv(sock, 1 << 16)
        before = _shared_memory()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for ident in range(1, 600):
                await loop.sock_sendall(sock, line(ident, "execute", session="1", code="state"))
        await asyncio.sleep(0.5)
        return _shared_memory() - before


def _shared_memory():
    return int(Path("/proc/meminfo").read_text().split("Shmem:")[1].split()[0]) * 1024


async def test_a_guests_flood_of_large_calls_does_not_cost_its_client_the_connection(serve):
    await serve()

    async def slow(prompt):
        await asyncio.sleep(0.01)
        return str(len(prompt))

    options = {"backend": "daemon", "on_llm_query": slow}
    async with (
        atoll.aio.create_sandbox(**options) as box,
        atoll.aio.create_sandbox(backend="daemon") as other,
    ):
        code = "r = batch_llm_query(['x' * 1_000_000] * 30)\nset(map(str, r))"
        result = await box.execute(code, timeout_ms=60_000)
        assert result.value == {"1000000"}, result
        assert (await other.execute("1")).value == 1


async def test_only_a_client_that_was_dropped_is_a_warning(serve, caplog):
    daemon = await serve(open_notebook)
    leaves, breaks = daemon.raw(), daemon.raw()
    await until(lambda: daemon.server.stats()["connections"] == 2)
    leaves.close()
    await until(lambda: daemon.server.stats()["connections"] == 1)
    assert not caplog.records
    breaks.send(b"gone mad\n")
    await until(lambda: daemon.server.stats()["connections"] == 0)
    assert "dropped a client: it broke the protocol" in caplog.text
    breaks.close()
