"""The connection between a driver and a node: proof of the secret, messages, silence, encryption."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import BusyError, SandboxError
from atoll.fleet import link as links
from atoll.fleet.link import HELLO, LinkLostError, NodeListener, dial, peer_options
from atoll.guest.shared import rpc
from atoll.rpc import blobs, connection, transports
from atoll.rpc.connection import HIGH_WATER, Peer, PeerOptions
from atoll.rpc.passed_fds import PassedFds, Reply

SECRET = b"s" * 32
LARGE = transports.CHUNK


async def serve(method: str, params: dict[str, Any], fds: PassedFds) -> Reply:
    if method == "wait":
        await asyncio.sleep(3600)
    if method == "large":
        return Reply("x" * (1 << 20))
    data = [bytes(fds.take_bytes()) for _ in range(len(fds))]
    return Reply({**params, "sizes": [len(one) for one in data]}, PassedFds(data))


class Node:
    """A listening end; `ended` has why its connections ended."""

    def __init__(self, options: PeerOptions | None = None) -> None:
        self.peers: list[Peer] = []
        self.ended: list[str] = []
        self.options = options or peer_options("the driver")
        self.listener = NodeListener(SECRET, self.welcome)
        self.port = self.listener.start("127.0.0.1")

    def welcome(self, sock: socket.socket) -> None:
        self.peers.append(Peer(sock, serve, print, self.ended.append, self.options))

    async def connect(self, secret: bytes = SECRET, hear: Any = print, **options: Any) -> Peer:
        count = len(self.peers)
        sock = await dial(("127.0.0.1", self.port), secret)
        chosen = replace(peer_options("the node n"), **options)
        made = Peer(sock, serve, hear, lambda _why: None, chosen)
        await until(lambda: len(self.peers) > count)
        return made

    async def until_ended(self) -> str:
        await until(lambda: self.ended)
        return self.ended[0]


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110 - no callback tells it
            await asyncio.sleep(0.01)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with listening() as made:
        yield made


@contextlib.asynccontextmanager
async def listening(options: PeerOptions | None = None) -> AsyncIterator[Node]:
    made = Node(options)
    try:
        yield made
    finally:
        made.listener.close()
        for peer in made.peers:
            peer.end("over")


async def test_requests_and_bytes_cross_both_ways(node: Node) -> None:
    peer = await node.connect()
    data = [b"", os.urandom(3 << 20), b"\0"]
    for items in (data, [*map(blobs.write, data)]):
        reply = await peer.call("any", {"text": "\ud800 ü", "n": [1, None]}, items)
        assert reply.value == {"text": "\ud800 ü", "n": [1, None], "sizes": [0, 3 << 20, 1]}
        assert [reply.passed_fds.take_bytes() for _ in data] == data
    back = await node.peers[0].call("any", {"x": 1})
    assert back.value["x"] == 1
    many = await asyncio.gather(*(peer.call("any", {"n": n}, [b"%d" % n]) for n in range(200)))
    assert [(one.value["n"], bytes(one.passed_fds.take_bytes())) for one in many] == [
        (n, b"%d" % n) for n in range(200)
    ]
    peer.end("over")


async def test_bytes_that_came_are_a_descriptor_for_what_wants_one(node: Node) -> None:
    peer = await node.connect()
    reply = await peer.call("any", {}, [b"some"])
    assert blobs.read(reply.passed_fds.take()) == b"some"
    peer.end("over")


@pytest.mark.parametrize("step", [1, 7, 1000, 70_000, 1 << 20])
async def test_messages_and_bytes_are_found_however_they_are_cut(step: int) -> None:
    ours, theirs = tcp_pair()
    heard: list[Any] = []
    peer = Peer(ours, serve, lambda *told: heard.append(told), print)
    large = os.urandom(LARGE if step < 7 else 5 * LARGE)
    sent: list[tuple[int, list[bytes]]] = [(1, [b"small"]), (2, [large, b"", b"\0\n"]), (3, [])]
    stream = b""
    for n, items in sent:
        line = rpc.request(str(n), "any", {"n": n, "fds": len(items)} if items else {"n": n})
        stream += b"".join(bytes(part) for part, _ in peer._transport.pack(line, items))
        stream += rpc.notification("told", {"n": n})
    write, loop = memoryview(stream), asyncio.get_running_loop()
    for at in range(0, len(stream), step):
        await loop.sock_sendall(theirs, write[at : at + step])
        if step >= 7:
            await asyncio.sleep(0)
    await until(lambda: len(heard) == 3)
    assert [told[1]["n"] for told in heard] == [1, 2, 3]
    other = Peer(theirs, serve, print, print)
    replies = {}
    other._settle = lambda message: replies.update({message["id"]: message})  # type: ignore[method-assign]
    await until(lambda: len(replies) == 3)
    sizes = {ident: message["result"]["sizes"] for ident, message in replies.items()}
    assert sizes == {str(n): [len(one) for one in items] for n, items in sent}
    peer.end("over")
    other.end("over")


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    theirs.setblocking(False)
    return ours, theirs


async def test_a_driver_without_the_secret_is_refused(node: Node) -> None:
    with pytest.raises(ConnectionError, match="does not know the secret"):
        await dial(("127.0.0.1", node.port), b"t" * 32)
    await until(lambda: not node.listener._strangers)
    assert not node.peers


async def test_a_node_without_the_secret_is_not_spoken_to() -> None:
    """A process that took the node's port over learns nothing but a nonce."""
    heard = bytearray()

    class Liar(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            heard.extend(data)
            self.transport.write(b"z" * 64)

    server = await asyncio.get_running_loop().create_server(Liar, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectionError, match="does not know the secret"):
        await dial(("127.0.0.1", port), SECRET)
    assert len(heard) == len(HELLO) + 32
    server.close()


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", HELLO + b"n" * 32 + b"x" * 32])
async def test_what_is_no_driver_is_cut_off(node: Node, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(sent)
    async with asyncio.timeout(5):  # before the handshake would have taken too long
        with contextlib.suppress(ConnectionError):
            await reader.read()
    assert not node.peers
    writer.close()


async def test_a_connection_that_says_nothing_is_cut_off(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "HANDSHAKE_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()


async def test_calls_fail_when_the_other_end_goes_and_its_requests_are_cancelled(
    node: Node,
) -> None:
    peer = await node.connect()
    waiting = asyncio.ensure_future(peer.call("wait", {}))
    await peer.call("any", {})
    node.peers[0].end("power cut")
    with pytest.raises(LinkLostError, match="the node n has gone"):
        await waiting
    with pytest.raises(LinkLostError, match="the connection to the node n has ended: the node n"):
        await peer.call("any", {})


async def test_an_end_that_is_silent_is_given_up_and_one_that_lives_is_not() -> None:
    async with listening(replace(peer_options("the driver"), silent_seconds=None)) as node:
        peer = await node.connect(silent_seconds=3.0)  # in which a busy machine answers too
        answered = []
        for _ in range(3):
            await until(lambda: peer.heard not in answered)
            answered.append(peer.heard)
        assert not peer.ended
        pause_reading(node.peers[0])
        await until(lambda: peer.ended)
        assert "the node n has not answered for" in str(peer._ended)


async def test_a_message_that_is_too_large_is_an_error_and_no_end(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await node.connect()
    monkeypatch.setattr(rpc, "MAX_MESSAGE_BYTES", 200_000)
    monkeypatch.setattr(transports, "MAX_BLOB_BYTES", 2000)
    with pytest.raises(rpc.MessageTooLargeError, match="the limit is 200,000"):
        await peer.call("any", {"x": "x" * 200_000})
    with pytest.raises(SandboxError, match="the limit is 200,000"):
        await peer.call("large", {})
    with pytest.raises(SandboxError, match="at most 2,000 may be"):
        await peer.call("any", {}, [b"x" * 2001])
    monkeypatch.undo()
    assert (await peer.call("any", {})).value == {"sizes": []}
    peer.end("over")


def pause_reading(peer: Peer) -> None:
    peer._loop.remove_reader(peer._socket.fileno())


async def test_calls_wait_for_an_end_that_does_not_read(node: Node) -> None:
    peer = await node.connect()
    pause_reading(node.peers[0])
    text = "x" * (1 << 20)
    calls = [asyncio.ensure_future(peer.call("any", {"text": text})) for _ in range(100)]
    await until(lambda: peer._outbox.size > HIGH_WATER)
    for _ in range(50):
        await asyncio.sleep(0)
        assert peer._outbox.size < 2 * HIGH_WATER
    node.peers[0]._read_on()
    assert len(await asyncio.gather(*calls)) == 100
    peer.end("over")


async def test_replies_wait_for_an_end_that_does_not_read(node: Node) -> None:
    peer = await node.connect()
    await peer.call("any", {})
    other = node.peers[0]
    pause_reading(peer)
    calls = [asyncio.ensure_future(peer.call("large", {})) for _ in range(100)]
    await until(lambda: other._outbox.size > HIGH_WATER)
    for _ in range(50):
        await asyncio.sleep(0)
        assert other._outbox.size < 2 * HIGH_WATER
    peer._read_on()
    assert len(await asyncio.gather(*calls)) == 100
    peer.end("over")


async def test_notifications_that_nobody_reads_end_the_connection(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_UNREAD", 4 << 20)
    peer = await node.connect()
    pause_reading(node.peers[0])
    for _ in range(200):
        peer.notify("output", {"text": "x" * (1 << 20)})
        await asyncio.sleep(0)
        if peer.ended:
            break
    assert "the node n does not read what it is sent" in str(peer._ended)


async def test_a_large_message_that_is_on_its_way_is_no_flood(node: Node) -> None:
    peer = await node.connect()
    pause_reading(node.peers[0])
    call = asyncio.ensure_future(peer.call("any", {}, [bytes(connection.MAX_UNREAD + 1)]))
    await until(lambda: peer._outbox.size > HIGH_WATER)
    for _ in range(5):
        peer.notify("output", {})
        await asyncio.sleep(0)
    node.peers[0]._read_on()
    assert (await call).value == {"sizes": [connection.MAX_UNREAD + 1]}
    peer.end("over")


async def test_a_call_that_is_cancelled_while_it_waits_leaks_nothing(node: Node) -> None:
    peer = await node.connect()
    peer._outbox.has_room.clear()
    fd = blobs.write(b"bytes")
    call = asyncio.ensure_future(peer.call("any", {}, [fd]))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    peer.end("over")


async def test_more_requests_than_can_run_are_refused() -> None:
    async with listening(replace(peer_options("the driver"), max_calls=5)) as node:
        peer = await node.connect()
        waiting = [asyncio.ensure_future(peer.call("wait", {})) for _ in range(5)]
        await until(lambda: len(node.peers[0].calls) == 5)
        with pytest.raises(BusyError, match="the limit is 5"):
            await peer.call("any", {})
        for call in waiting:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await until(lambda: not node.peers[0].calls)
        assert (await peer.call("any", {"x": 1})).value["x"] == 1
        peer.end("over")


async def test_strangers_do_not_keep_drivers_out(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_STRANGERS", 8)
    opened = [await asyncio.open_connection("127.0.0.1", node.port) for _ in range(20)]
    async with asyncio.timeout(5):  # long before the handshakes would have taken too long
        assert [await reader.read() for reader, _ in opened[:12]] == [b""] * 12
    made = [await node.connect() for _ in range(12)]
    assert all([(await one.call("any", {"x": 1})).value["x"] == 1 for one in made])
    for _, writer in opened:
        writer.close()
    for one in made:
        one.end("over")


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">BQ", 0, blobs.MAX_BLOB_BYTES + 1),
        struct.pack(">BQ", 0, 1 << 63),
        struct.pack(">BQ", 0, 0) * (transports.MAX_FDS + 1) + rpc.notification("x", {}),
        b'{"a' + struct.pack(">BQ", 0, 1),
        b"[" * 200_000 + b"\n",
        b"[]\n",
        b"nope\n",
        rpc.request("1", "any", {"fds": 1}),
        rpc.request("1", "any", {"fds": -1}),
        rpc.request("1", "any", {"fds": [1]}),
        b"x" * (rpc.MAX_MESSAGE_BYTES + 1),
    ],
    ids=range(11),
)
async def test_a_hostile_message_ends_the_connection_and_nothing_else(
    node: Node, sent: bytes
) -> None:
    peer = await node.connect()
    await peer.call("any", {})
    peer._outbox.put(sent, [])
    assert "the driver broke the protocol" in await node.until_ended()
    assert (await (await node.connect()).call("any", {"x": 1})).value["x"] == 1


@pytest.fixture
def certificates(tmp_path: Path) -> Callable[[], dict[str, str]]:
    """Makes Ray's variables for TLS, with an authority of its own each time."""

    def make() -> dict[str, str]:
        folder = tmp_path / os.urandom(4).hex()
        folder.mkdir()
        key, cert = folder / "key.pem", folder / "cert.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
        subprocess.run(
            [*command, "-subj", "/CN=fleet", "-keyout", str(key), "-out", str(cert)],
            check=True,
            capture_output=True,
        )
        return {
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": str(cert),
            "RAY_TLS_SERVER_KEY": str(key),
            "RAY_TLS_CA_CERT": str(cert),
        }

    return make


async def test_with_rays_tls_the_connection_is_encrypted_and_strangers_are_refused(
    certificates: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in certificates().items():
        monkeypatch.setenv(name, value)
    async with listening() as node:
        peer = await node.connect()
        data = os.urandom(3 << 20)
        reply = await peer.call("any", {"x": 1}, [data, b"y"])
        assert (reply.value["x"], reply.passed_fds.take_bytes()) == (1, data)
        many = await asyncio.gather(*(peer.call("large", {}) for _ in range(20)))
        assert len(many) == 20
        assert isinstance(peer._socket, ssl.SSLSocket)
        assert peer._socket.cipher()
        peer.end("over")
        for name, value in certificates().items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            await node.connect()
