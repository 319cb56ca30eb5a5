"""What waits to be sent: in order, with its descriptors, and never without a bound."""

from __future__ import annotations

import array
import asyncio
import os
import socket

import pytest

import atoll
from atoll.rpc import blobs
from atoll.rpc.connection import HIGH_WATER, MAX_UNREAD, Peer
from atoll.rpc.peer import MAX_WAITING


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def peer_of(pair):
    return Peer(pair[0], None, None, lambda _why: None)


async def read_all(sock):
    data = b""
    while True:
        try:
            data += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 1 << 20), 0.2)
        except TimeoutError:
            return data


async def test_messages_arrive_in_order_however_slow_the_reader(pair):
    outbox = peer_of(pair)._outbox
    lines = [bytes([65 + number % 26]) * 100_000 for number in range(50)]
    for line in lines:
        outbox.put(line, [])
    assert outbox.size > 0
    assert await read_all(pair[1]) == b"".join(lines)
    assert outbox.size == 0
    outbox.close()


async def test_a_call_waits_while_it_is_crowded_and_too_many_are_refused(pair):
    outbox = peer_of(pair)._outbox
    await outbox.wait_for_room(1)
    outbox.put(b"x" * (HIGH_WATER + (1 << 20)), [])
    waiting = asyncio.create_task(outbox.wait_for_room(MAX_WAITING))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    with pytest.raises(atoll.BusyError, match="too much waits"):
        await outbox.wait_for_room(1)
    await read_all(pair[1])
    await waiting
    await outbox.wait_for_room(1)
    outbox.close()


async def test_the_end_lets_go_whoever_waits(pair):
    outbox = peer_of(pair)._outbox
    outbox.put(b"x" * 2 * HIGH_WATER, [])
    waiting = asyncio.create_task(outbox.wait_for_room(1))
    await asyncio.sleep(0)
    outbox.close()
    await asyncio.wait_for(waiting, 5)


async def test_past_the_bound_the_other_side_is_given_up(pair):
    peer = peer_of(pair)
    for size in (2 * HIGH_WATER, MAX_UNREAD + (2 << 20)):
        await asyncio.sleep(0)  # in a turn of its own
        peer._send(b"x" * size, [])
        assert not peer.ended
    fd = blobs.write(b"y")
    peer._send(b"one more", [fd])
    assert peer.ended
    with pytest.raises(OSError):
        os.fstat(fd)


async def test_memory_files_count_and_wait_until_all_before_them_is_read(pair):
    outbox = peer_of(pair)._outbox
    outbox.put(b"first", [])
    fd = blobs.write(b"z" * 1000)
    outbox.put(b"second", [fd])
    outbox.put(b"third", [])
    assert outbox.size == len("secondthird") + 1000
    await asyncio.sleep(0.05)
    assert pair[1].recv(100) == b"first"
    await asyncio.sleep(0.05)
    room = socket.CMSG_SPACE(4)
    data, ancillary, _, _ = pair[1].recvmsg(6, room)
    assert data == b"second"
    (received,) = array.array("i", ancillary[0][2])
    assert blobs.read(received) == b"z" * 1000
    await asyncio.sleep(0.05)
    assert pair[1].recv(100) == b"third"
    assert outbox.size == 0
    with pytest.raises(OSError):
        os.fstat(fd)
    outbox.close()
