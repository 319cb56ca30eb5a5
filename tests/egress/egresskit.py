"""A server on loopback that records what it was sent, and a gateway that a test talks to raw."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from ipaddress import ip_address

from atoll.egress.authority import Authority
from atoll.egress.gateway import Gateway
from atoll.network import NetworkPolicy

NAME = "api.test"
"""Resolved to the server on loopback by the resolver of every gateway here."""


def answer(body: bytes = b"ok", status: str = "200 OK", **headers: str) -> bytes:
    """The bytes of a whole HTTP answer."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


class Origin:
    """Answers each path with bytes, or by a function of the connection; records requests whole."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.requests: list[bytes] = []
        self.connections = 0
        self.port = 0
        self._tasks: set[asyncio.Task] = set()

    @contextlib.asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer) -> None:
        self._tasks.add(asyncio.current_task())
        self.connections += 1
        try:
            await self._converse(reader, writer)
        finally:
            writer.transport.abort() if asyncio.current_task().cancelling() else writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _converse(self, reader, writer) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n")
                               if line.startswith(b"content-length")), 0)  # fmt: skip
                self.requests.append(head + await reader.readexactly(length))
                path = head.split()[1].decode().partition("?")[0]
                given = self.answers.get(path, answer())
                if callable(given):
                    await given(reader, writer)
                else:
                    writer.write(given)
                    await writer.drain()
                if b"\r\nconnection: close\r\n" in head.lower():
                    return


def resolver_of(*addresses: str):
    """A stand-in for getaddrinfo, which counts; each call answers with all `addresses`."""
    asked: list[str] = []

    def resolve(host, port, *_rest):
        asked.append(host)
        try:
            numbers = [str(ip_address(host))]
        except ValueError:
            numbers = addresses
        return [
            (
                socket.AF_INET6 if ":" in one else socket.AF_INET,
                socket.SOCK_STREAM,
                6,
                "",
                (one, port),
            )
            for one in numbers
        ]

    resolve.asked = asked
    return resolve


class Client:
    """A guest that says what a test wants."""

    def __init__(self, gateway: Gateway, share, port: int) -> None:
        self.gateway, self.share, self.port = gateway, share, port

    async def say(self, *pieces: bytes, end: bool = False) -> bytes:
        """Send bytes on a new connection; all that comes back until it is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if end:
                writer.write_eof()
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def get(self, url: str, *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
        """Ask for a URL and have the connection closed after it."""
        lines = [f"{method} {url} HTTP/1.1", "Host: x", "Connection: close", *headers]
        lines += [f"Content-Length: {len(body)}"] if body else []
        return await self.say("\r\n".join([*lines, "", ""]).encode() + body)

    def use(self):
        return self.share.take()

    def refusals(self) -> list[str]:
        return [one.refused for one in self.use().refused]


@contextlib.asynccontextmanager
async def serving(policy: NetworkPolicy | list[str], resolver=None):
    """A gateway with that policy, on a listener of the test's own network."""
    gateway = Gateway(NetworkPolicy.of(policy), resolver=resolver or resolver_of("127.0.0.1"))
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    share = gateway.share(gateway._rules.policy)
    gateway.listen(listener.detach())
    try:
        yield Client(gateway, share, port)
    finally:
        await share.release()


def policy_for(origin: Origin, **fields) -> NetworkPolicy:
    """Allow the origin by its name, though its address is private."""
    fields = {"private": ["127.0.0.0/8"], **fields}
    return NetworkPolicy([f"{NAME}:{origin.port}"], **fields)


def authority() -> Authority:
    return Authority()
