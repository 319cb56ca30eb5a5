"""The proxy that a guest talks to: plain HTTP by absolute URLs, https by CONNECT.

SECURITY: the guest may send anything. h11 parses it and serialises it anew; bytes that are not a
request count as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import h11

from atoll.egress.authority import same_name
from atoll.egress.forward import Forwarder, Question, ServerSlot
from atoll.egress.http import HttpPeer, asked_of
from atoll.egress.rules import Entry, RefusedError
from atoll.egress.streams import PlainStream, ReplayedStream, TlsStream, pump, read_hello
from atoll.network import NetworkRequest

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable
    from concurrent.futures import Executor

    from atoll.egress.addresses import Connector
    from atoll.egress.authority import Authority
    from atoll.egress.credentials import Secrets
    from atoll.egress.forward import Answer
    from atoll.egress.http import Headers
    from atoll.egress.rules import Budget, Log, Rules
    from atoll.egress.streams import Stream
    from atoll.network import OnRequest

IDLE_SECONDS = 60.0
"""Seconds that a guest's connection may be idle before and between requests."""
HELLO_SECONDS = 15.0
SPENT_PAUSE = 0.05
"""Seconds that each connection waits after a guest has used up its requests."""
ACCEPT_PAUSE = 0.1
_WRONG_NAME_ALERT = b"\x15\x03\x01\x00\x02\x02\x70"
_LONGEST_REASON = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a proxy."""

    rules: Rules
    secrets: Secrets
    connector: Connector
    budget: Budget
    log: Log
    authority: Authority | None
    threads: Executor
    """For blocking calls: lookups, and a caller's function. Used by this guest only, so that no
    other waits for them."""
    on_request: Callable[[], OnRequest | None]
    """Returns the caller's function that decides at present."""


class Proxy:
    """Serves the connections of one guest."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._forwarder = Forwarder(parts.rules, parts.secrets, parts.threads)
        self._places = asyncio.Semaphore(parts.rules.policy.max_connections)
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until cancelled; then close them all."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        try:
            while True:
                await self._places.acquire()
                if self.parts.budget.spent:
                    await asyncio.sleep(SPENT_PAUSE)
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError:  # no descriptor is free, or the guest has closed it
                    self._places.release()
                    await asyncio.sleep(ACCEPT_PAUSE)
                    continue
                task = asyncio.ensure_future(self._serve_connection(connection))
                self._connections.add(task)
                task.add_done_callback(self._over)
        finally:
            for task in self._connections:
                task.cancel()

    async def wait_closed(self) -> None:
        """Wait for the connections, once `serve` was cancelled."""
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.sleep(0)  # an aborted transport is closed in the next iteration of the loop

    def _over(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._places.release()
        if not task.cancelled():
            task.exception()

    async def _serve_connection(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection)
        except OSError:
            connection.close()
            return
        stream = PlainStream(reader, writer, acknowledge=True)
        try:
            await self.converse(stream, None)
        except asyncio.CancelledError:
            stream.abort()
            raise
        finally:
            stream.close()

    async def converse(self, stream: Stream, tunnel: NetworkRequest | None) -> None:
        """Answer requests until the guest closes the stream, or sends something else.

        `tunnel` is the CONNECT that opened the stream.
        """
        guest = HttpPeer(stream, h11.SERVER)
        slot = ServerSlot(self.parts.connector)
        asked = 0
        try:
            while True:
                async with asyncio.timeout(IDLE_SECONDS):
                    event = await guest.next_event()
                if not isinstance(event, h11.Request):
                    return
                asked += 1
                if not await self._answer(guest, event, slot, tunnel) or not guest.reusable:
                    return
                guest.h11.start_next_cycle()
        except h11.RemoteProtocolError as exc:
            await self._refuse_garbage(guest, RefusedError(f"not HTTP: {exc}", 400), tunnel)
        except (OSError, TimeoutError, EOFError):
            return  # the guest closed it, or is idle
        finally:
            slot.close()
            if not asked and tunnel is None:  # a connection costs as much as a request
                with contextlib.suppress(RefusedError):
                    self.parts.budget.count_request()

    async def _answer(
        self, guest: HttpPeer, event: h11.Request, slot: ServerSlot, tunnel: NetworkRequest | None
    ) -> bool:
        """Answer one request; return whether another may follow."""
        try:
            asked, target = asked_of(event, tunnel)
        except RefusedError as exc:
            await self._refuse_garbage(guest, exc, tunnel)
            return False
        entry = Entry(asked, self.parts.budget)
        # Listed from then on: the cell may end when the guest has the head of the response.
        answer = WireAnswer(guest, on_start=lambda: self.parts.log.open(entry))
        try:
            await self.admit(asked)
            if asked.method == "CONNECT":
                await self._tunnel(guest, entry)
                return False
            question = Question(target, list(event.headers), await _body_of(guest, event))
            await self.forward(entry, question, answer, slot)
        except RefusedError as exc:
            refusal = self.refuse(entry, exc)
        else:
            return True
        finally:  # before a refusal is sent, for the same reason
            if asked.method != "CONNECT" or self.parts.authority is None or entry.ended_early:
                self.parts.log.add(entry)  # its requests are listed instead
        if not answer.started:
            await self._refuse(guest, refusal)
        return False

    async def admit(self, asked: NetworkRequest) -> None:
        """Count a request and check it against the policy; RefusedError."""
        parts = self.parts
        parts.budget.count_request()
        parts.rules.check(asked)
        if asked.method != "CONNECT" or parts.authority is None:
            await parts.rules.decide(asked, parts.on_request(), parts.threads)

    def refuse(self, entry: Entry, why: RefusedError) -> RefusedError:
        """Record why a request has no response, and return it as the guest may see it.

        SECURITY: without secrets, whatever the text was made of.
        """
        shown = why.cleaned(self.parts.secrets.redact)
        entry.refuse(shown)
        return shown

    async def forward(
        self, entry: Entry, question: Question, answer: Answer, slot: ServerSlot
    ) -> None:
        """Forward an admitted request, within the policy's time limit."""
        seconds = self.parts.rules.policy.max_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._forwarder.forward(entry, question, answer, slot)
        except TimeoutError:
            reason = f"{entry.asked.place} took longer than max_seconds={seconds}"
            raise RefusedError(reason, 504) from None

    async def _tunnel(self, guest: HttpPeer, entry: Entry) -> None:
        """Open https for the guest: inspected by the proxy, or passed through."""
        if self.parts.authority is not None:
            await self._inspect(guest, entry.asked, self.parts.authority)
            return
        server = await self.parts.connector.connect(entry.asked, tls=False)
        seconds = self.parts.rules.policy.max_seconds
        try:
            self.parts.log.open(entry)
            async with asyncio.timeout(seconds):
                stream = await _accept_tunnel(guest)
                await self._pass_through(stream, server, entry)
        except TimeoutError:
            raise RefusedError(f"the connection was ended after max_seconds={seconds}") from None
        finally:
            server.abort()

    async def _inspect(self, guest: HttpPeer, asked: NetworkRequest, authority: Authority) -> None:
        stream = TlsStream(await _accept_tunnel(guest), authority.context(asked.host))
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await stream.handshake()
        except ssl.SSLError as exc:
            raise RefusedError(f"TLS with the guest failed: {exc.reason or exc}") from None
        await self.converse(stream, asked)

    async def _pass_through(self, guest: Stream, server: PlainStream, entry: Entry) -> None:
        """Pass TLS through. SECURITY: only if it is TLS, for the host of the CONNECT request."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello, name = await read_hello(guest)
        except (ssl.SSLError, EOFError):
            raise RefusedError("a connection by CONNECT must carry TLS") from None
        if not same_name(name, entry.asked.host):
            await guest.write(_WRONG_NAME_ALERT)
            asked = entry.asked.place
            raise RefusedError(f"a connection to {asked} says TLS server name {name!r:.100}")
        traffic = entry.traffic
        traffic.count_sent(len(hello))
        await server.write(hello)
        up = asyncio.ensure_future(pump(guest, server, traffic.count_sent))
        down = asyncio.ensure_future(pump(server, guest, traffic.count_received))
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            if not down.done():
                await up
                await server.end()  # the guest sends no more; the server may still answer
            await down
        finally:
            for way in (up, down):
                way.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await way

    async def _refuse(self, guest: HttpPeer, refusal: RefusedError) -> None:
        """Send the reason in the status line and the body, where clients show it."""
        words = str(refusal).encode("ascii", "replace")[:_LONGEST_REASON]
        line = bytes(byte if 0x20 <= byte < 0x7F else 0x3F for byte in words)
        if guest.h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [
            (b"content-type", b"text/plain"),
            (b"connection", b"close"),
            (b"content-length", b"%d" % (len(line) + 1)),
            (b"x-atoll-refused", line),
        ]
        with contextlib.suppress(OSError, h11.LocalProtocolError):
            response = h11.Response(status_code=refusal.status, headers=headers, reason=line)
            await guest.send(response)
            await guest.send(h11.Data(data=line + b"\n"))
            await guest.send(h11.EndOfMessage())
            await guest.drain()

    async def _refuse_garbage(
        self, guest: HttpPeer, refusal: RefusedError, tunnel: NetworkRequest | None
    ) -> None:
        host, port = (tunnel.host, tunnel.port) if tunnel else ("", 0)
        asked = NetworkRequest(host=host, port=port, method="", scheme="")
        entry = Entry(asked, self.parts.budget)
        shown = self.refuse(entry, refusal)
        with contextlib.suppress(RefusedError):
            self.parts.budget.count_request()
        self.parts.log.add(entry)
        await self._refuse(guest, shown)


class WireAnswer:
    """Streams a response to the guest; EOFError if the guest has closed the connection."""

    def __init__(self, guest: HttpPeer, on_start: Callable[[], None]) -> None:
        self._guest, self._on_start = guest, on_start
        self.started = False

    async def start(self, status: int, reason: bytes, headers: Headers) -> None:
        """Send status and headers."""
        self.started = True
        self._on_start()
        await self._send(h11.Response(status_code=status, headers=headers, reason=reason))

    async def data(self, piece: bytes) -> None:
        """Send a piece of the body."""
        await self._send(h11.Data(data=piece))

    async def end(self) -> None:
        """End the answer."""
        await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Event) -> None:
        try:
            await self._guest.send(event)
        except OSError:
            raise EOFError from None


async def _accept_tunnel(guest: HttpPeer) -> Stream:
    """Tell the guest that its tunnel is open; return the bytes it has already sent into it."""
    await guest.next_event()  # the end of the request
    await guest.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
    first, _ = guest.h11.trailing_data
    return ReplayedStream(guest.stream, first)


async def _body_of(guest: HttpPeer, event: h11.Request) -> AsyncIterator[bytes] | None:
    """Return the body that follows; None if the request has none."""
    lengths = [value for name, value in event.headers if name == b"content-length"]
    if any(name == b"transfer-encoding" for name, _ in event.headers) or (
        lengths and int(lengths[0])
    ):
        return _sent_body(guest)
    await guest.next_event()  # the end of the request
    return None


async def _sent_body(guest: HttpPeer) -> AsyncIterator[bytes]:
    try:
        if guest.h11.they_are_waiting_for_100_continue:
            await guest.send(h11.InformationalResponse(status_code=100, headers=[]))
        async for piece in guest.body():
            yield piece
    except h11.RemoteProtocolError as exc:
        raise RefusedError(f"the request's body is not HTTP: {exc}", 400) from None
    except OSError:
        raise EOFError from None
