"""Connections with ports of a fleet's sessions, without the fleet: a node's side, and a client's."""

from __future__ import annotations

import asyncio
import socket

import pytest
from guest_servers import ECHO

from atoll import BusyError, PortError, SandboxError
from atoll.config import SandboxConfig
from atoll.fleet import streams
from atoll.rpc.passed_fds import PassedFds


class OneSession:
    """As a node has a session: requests are carried out in its sandbox."""

    def __init__(self, box):
        self.box, self.over = box, False

    async def carry_out(self, request):
        return await request.apply(self.box)


@pytest.fixture
async def node(pool):
    async with await pool.open(SandboxConfig(preload="bare")) as box:
        await box.execute(ECHO)
        session, node = OneSession(box), streams.NodeStreams()

        async def ask(_method, params, items):
            return await node.request(session, params, PassedFds(items))

        yield node, session, ask
        node.forget(session)


async def test_bytes_and_the_end_of_each_way_pass(node):
    data = bytes(range(256)) * 10_000
    connection, relay = await streams.connect(node[2], 7000)
    running = asyncio.ensure_future(relay)

    def exchange():
        with connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))

    assert await asyncio.to_thread(exchange) == data[::-1]
    await running
    assert not node[0]._streams[node[1]]


async def test_a_server_that_says_nothing_is_asked_again(node, monkeypatch):
    monkeypatch.setattr(streams, "WAIT_SECONDS", 0.01)
    _, _, ask = node
    await ask("stream", {"operation": "open", "stream": "a", "port": 7000}, [])
    reply = await ask("stream", {"operation": "read", "stream": "a"}, [])
    assert (reply.value, len(reply.passed_fds)) == ({}, 0)


async def test_what_a_client_asks_for_is_checked(node):
    _, _, ask = node
    with pytest.raises(PortError):
        await ask("stream", {"operation": "open", "stream": "a", "port": 7001}, [])
    with pytest.raises(SandboxError, match="the connection has ended"):
        await ask("stream", {"operation": "read", "stream": "none"}, [])
    with pytest.raises(ValueError, match="port must be"):
        await ask("stream", {"operation": "open", "stream": "a", "port": "7000"}, [])


async def test_connections_of_a_session_are_limited_and_end_with_it(node, monkeypatch):
    monkeypatch.setattr(streams, "MAX_STREAMS", 2)
    nodes, session, ask = node
    for name in "ab":
        await ask("stream", {"operation": "open", "stream": name, "port": 7000}, [])
    with pytest.raises(BusyError):
        await ask("stream", {"operation": "open", "stream": "c", "port": 7000}, [])
    session.over = True
    nodes.sweep()
    with pytest.raises(SandboxError, match="the connection has ended"):
        await ask("stream", {"operation": "read", "stream": "a"}, [])
