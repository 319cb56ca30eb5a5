"""The connection between a driver and a node: proof of the secret, frames, silence, encryption."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore", reason="the extra `ray` is not installed")

from atoll.errors import BusyError, SandboxError
from atoll.fleet import frames
from atoll.fleet import link as links
from atoll.fleet import peer as peers
from atoll.fleet.link import HELLO, Link, Strangers, dial, tls
from atoll.fleet.peer import CROWDED, LinkLostError
from atoll.rpc.connection import Reply
from atoll.rpc.passed_fds import PassedFds
from atoll.sandbox.wire import blobs

SECRET = b"s" * 32


async def serve(method: str, params: dict[str, Any], fds: PassedFds) -> Reply:
    if method == "wait":
        await asyncio.sleep(3600)
    if method == "large":
        return Reply("x" * 2000)
    data = [blobs.read(fd) for fd in fds.hand_over()]
    return Reply({**params, "sizes": [len(one) for one in data]}, PassedFds(map(blobs.write, data)))


class Node:
    """A listening end; `ended` has why its links ended."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.ended: list[str] = []
        self.port = 0

    def welcome(self) -> Link:
        link = Link(SECRET, serve, print, lambda _link, why: self.ended.append(why), dials=False)
        self.links.append(link)
        return link

    async def connect(self, secret: bytes = SECRET, **options: Any) -> Link:
        link = Link(
            secret, serve, options.get("hear", print), lambda *_: None, dials=True, name="n"
        )
        await dial(("127.0.0.1", self.port), link)
        return link

    async def until_ended(self) -> str:
        async with asyncio.timeout(20):
            while not self.ended:  # noqa: ASYNC110 - it is told by a callback
                await asyncio.sleep(0.01)
        return self.ended[0]


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with listening() as made:
        yield made


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Node]:
    made = Node()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(made.welcome, "127.0.0.1", 0, ssl=tls(server=True))
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for link in made.links:
            link.end("over")


async def test_requests_and_bytes_cross_both_ways(node: Node) -> None:
    link = await node.connect()
    data = [b"", os.urandom(3 << 20), b"\0"]
    reply = await link.peer.call(
        "any", {"text": "\ud800 ü", "n": [1, None]}, [*map(blobs.write, data)]
    )
    assert reply.value == {"text": "\ud800 ü", "n": [1, None], "sizes": [0, 3 << 20, 1]}
    assert [blobs.read(fd) for fd in reply.passed_fds.hand_over()] == data
    back = await node.links[0].peer.call("any", {"x": 1})
    assert back.value["x"] == 1
    many = await asyncio.gather(*(link.peer.call("any", {"n": n}) for n in range(200)))
    assert [one.value["n"] for one in many] == list(range(200))


def test_frames_are_found_however_they_are_cut_and_large_bytes_are_not_copied() -> None:
    large = b"l" * frames.LARGE
    sent: list[tuple[int, list[bytes]]] = [(1, [b"small"]), (2, [large, b"", b"x"]), (3, [])]
    stream = b"".join(part for n, data in sent for part in frames.encode({"n": n}, data))
    for step in (7, 70_000, len(stream)):
        received, found = bytearray(), []
        for at in range(0, len(stream), step):
            received += stream[at : at + step]
            while (one := frames.take(received)) is not None:
                message, received = one
                found.append(message)
        assert [(one["n"], [bytes(data) for data in one["blobs"]]) for one in found] == sent
        assert isinstance(found[1]["blobs"][0], memoryview)
        assert not received


@pytest.mark.parametrize("step", [1000, frames.LARGE, 1 << 20])
async def test_a_large_message_is_received_in_its_place_and_others_around_it_are_found(
    step: int,
) -> None:
    heard: list[Any] = []
    link = Link(SECRET, serve, lambda *told: heard.append(told), lambda *_: None, dials=False)
    link.ready.set_result(None)
    sent = [("small", {"n": 1}), ("large", {"text": "l" * 300_000}), ("small", {"n": 2})]
    parts = [frames.encode({"method": name, "params": params})[0] for name, params in sent]
    stream, most_room = memoryview(b"".join(parts)), 0
    while stream:
        room = link.get_buffer(-1)
        most_room, count = max(most_room, len(room)), min(step, len(room), len(stream))
        room[:count] = stream[:count]
        link.buffer_updated(count)  # `room` is still known here, as in asyncio
        stream = stream[count:]
    assert heard == sent
    assert most_room > 2 * frames.LARGE
    link.end("over")


async def test_a_driver_without_the_secret_is_refused(node: Node) -> None:
    with pytest.raises(ConnectionError):
        await node.connect(b"t" * 32)
    assert not node.links[0].ready.done() or node.links[0].ready.exception()


async def test_a_node_without_the_secret_is_not_spoken_to() -> None:
    """Whoever took the node's port over learns nothing but a nonce."""
    heard = bytearray()

    class Liar(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            heard.extend(data)
            self.transport.write(b"z" * 64)

    server = await asyncio.get_running_loop().create_server(Liar, "127.0.0.1", 0)
    node = Node()
    node.port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectionError, match="broke the protocol"):
        await node.connect()
    assert len(heard) == len(HELLO) + 32
    server.close()


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", HELLO + b"n" * 32 + b"x" * 32])
async def test_what_is_no_driver_is_cut_off(node: Node, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(sent)
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            await reader.read()
    assert "broke the protocol" in await node.until_ended()
    writer.close()


async def test_a_connection_that_says_nothing_is_cut_off(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "HANDSHAKE_SECONDS", 0.2)
    _, writer = await asyncio.open_connection("127.0.0.1", node.port)
    assert await node.until_ended() == "no handshake in time"
    writer.close()


async def test_calls_fail_when_the_other_end_goes_and_its_requests_are_cancelled(
    node: Node,
) -> None:
    link = await node.connect()
    waiting = asyncio.ensure_future(link.peer.call("wait", {}))
    await link.peer.call("any", {})
    node.links[0].end("power cut")
    with pytest.raises(LinkLostError, match="the node n was lost: the connection"):
        await waiting
    with pytest.raises(LinkLostError):
        await link.peer.call("any", {})


async def test_an_end_that_is_silent_is_given_up_and_one_that_lives_is_not(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("BEAT", 0.02), ("KEEP", 0.05)):
        monkeypatch.setattr(links, f"{name}_SECONDS", seconds)
    heard: list[str] = []
    link = await node.connect(hear=lambda method, _params: heard.append(method))
    async with asyncio.timeout(20):
        while len(heard) < 5:  # noqa: ASYNC110 - nothing else is said
            await asyncio.sleep(0.01)
    assert set(heard) == {"alive"}
    assert not link.peer.ended
    monkeypatch.setattr(node.links[0].peer, "notify", lambda *_: None)
    monkeypatch.setattr(links, "SILENT_SECONDS", 0.5)
    async with asyncio.timeout(20):
        while not link.peer.ended:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert "the node n was lost: it has been silent for" in link.peer.ended


async def test_a_message_that_is_too_large_is_an_error_and_no_end(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = await node.connect()
    monkeypatch.setattr(frames, "MOST_BYTES", 2000)
    with pytest.raises(SandboxError, match="a message may have 2,000 bytes"):
        await link.peer.call("any", {"x": "x" * 2000})
    with pytest.raises(SandboxError, match="a message may have 2,000 bytes"):
        await link.peer.call("large", {})
    monkeypatch.undo()
    assert (await link.peer.call("any", {})).value == {"sizes": []}


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110 - no callback tells it
            await asyncio.sleep(0.01)


def unsent(link: Link) -> int:
    assert link._transport is not None
    return link._transport.get_write_buffer_size() + sum(map(len, link.peer._outgoing))


async def test_calls_wait_for_an_end_that_does_not_read(node: Node) -> None:
    link = await node.connect()
    await until(lambda: node.links)
    node.links[0]._transport.pause_reading()  # type: ignore[union-attr]
    text = "x" * (1 << 20)
    calls = [asyncio.ensure_future(link.peer.call("any", {"text": text})) for _ in range(100)]
    await until(lambda: unsent(link) > CROWDED)
    for _ in range(50):
        await asyncio.sleep(0)
        assert unsent(link) < 2 * CROWDED
    node.links[0]._transport.resume_reading()  # type: ignore[union-attr]
    assert len(await asyncio.gather(*calls)) == 100


async def test_replies_wait_for_an_end_that_does_not_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = await node.connect()
    await link.peer.call("any", {})
    other = node.links[0]
    link._transport.pause_reading()  # type: ignore[union-attr]

    async def large(_method: str, _params: dict[str, Any], _fds: PassedFds) -> Reply:
        return Reply("x" * (1 << 20))

    monkeypatch.setattr(other.peer, "_serve", large)
    calls = [asyncio.ensure_future(link.peer.call("any", {})) for _ in range(100)]
    await until(lambda: unsent(other) > CROWDED)
    for _ in range(50):
        await asyncio.sleep(0)
        assert unsent(other) < 2 * CROWDED
    link._transport.resume_reading()  # type: ignore[union-attr]
    assert len(await asyncio.gather(*calls)) == 100


async def test_notifications_that_nobody_reads_end_the_link(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "MAX_UNREAD", 4 << 20)
    link = await node.connect()
    await until(lambda: node.links)
    node.links[0]._transport.pause_reading()  # type: ignore[union-attr]
    for _ in range(200):
        link.peer.notify("output", {"text": "x" * (1 << 20)})
        await asyncio.sleep(0)
        if link.peer.ended:
            break
    assert "it does not read what it is sent" in link.peer.ended
    assert unsent(link) < 200 << 20


async def test_a_call_that_is_cancelled_while_it_waits_leaks_nothing(node: Node) -> None:
    link = await node.connect()
    link.peer.crowd(crowded=True)
    fd = blobs.write(b"bytes")
    call = asyncio.ensure_future(link.peer.call("any", {}, [fd]))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


async def test_more_requests_than_can_run_are_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "MOST_CALLS", 5)
    link = await node.connect()
    waiting = [asyncio.ensure_future(link.peer.call("wait", {})) for _ in range(5)]
    await until(lambda: len(node.links[0].peer._running) == 5)
    with pytest.raises(BusyError, match="more than 5 calls"):
        await link.peer.call("any", {})
    for call in waiting:
        call.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await until(lambda: not node.links[0].peer._running)
    assert (await link.peer.call("any", {"x": 1})).value["x"] == 1


async def test_strangers_do_not_keep_drivers_out() -> None:
    strangers = Strangers(8)
    async with listening() as node:
        welcome, ended = node.welcome, node.ended

        def count() -> Link:
            link = welcome()
            strangers.add(link)
            return link

        server = await asyncio.get_running_loop().create_server(count, "127.0.0.1", 0)
        node.port = server.sockets[0].getsockname()[1]
        opened = [await asyncio.open_connection("127.0.0.1", node.port) for _ in range(20)]
        await until(lambda: len(ended) == 12)
        assert set(ended) == {"too many connections without a proof"}
        links_made = [await node.connect() for _ in range(12)]
        assert all([(await one.peer.call("any", {"x": 1})).value["x"] == 1 for one in links_made])
        for _, writer in opened:
            writer.close()
        for one in links_made:
            one.end("over")
        server.close()


async def test_a_stranger_costs_little_memory() -> None:
    link = Link(SECRET, serve, print, lambda *_: None, dials=False)
    assert len(link.get_buffer(-1)) <= links.HANDSHAKE_BYTES
    link.end("over")


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">II", 2, 1 << 27) + b"{}",
        struct.pack(">II", frames.MOST_BYTES + 1, 0),
        struct.pack(">IIQ", 2, 1, frames.MOST_BYTES),
        struct.pack(">IIQ", 2, 1, 1 << 63),
        struct.pack(">II", 200_000, 0) + b"[" * 200_000,
        struct.pack(">II", 2, 0) + b"[]",
        struct.pack(">II", 4, 0) + b"nope",
        struct.pack(">II", 13, 0) + b'{"cancel":{}}',
    ],
)
async def test_a_hostile_frame_ends_the_link_and_nothing_else(node: Node, frame: bytes) -> None:
    link = await node.connect()
    await link.peer.call("any", {})
    assert link._transport is not None
    link._transport.write(frame)
    assert "broke the protocol" in await node.until_ended()
    assert (await (await node.connect()).peer.call("any", {"x": 1})).value["x"] == 1


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
            check=True, capture_output=True,
        )  # fmt: skip
        return {
            "RAY_USE_TLS": "1", "RAY_TLS_SERVER_CERT": str(cert), "RAY_TLS_SERVER_KEY": str(key),
            "RAY_TLS_CA_CERT": str(cert),
        }  # fmt: skip

    return make


async def test_with_rays_tls_the_connection_is_encrypted_and_strangers_are_refused(
    certificates: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in certificates().items():
        monkeypatch.setenv(name, value)
    async with listening() as node:
        link = await node.connect()
        assert (await link.peer.call("any", {"x": 1})).value["x"] == 1
        assert link._transport is not None
        assert link._transport.get_extra_info("cipher")
        link.end("over")
        for name, value in certificates().items():
            monkeypatch.setenv(name, value)
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            await node.connect()
