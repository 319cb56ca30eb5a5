"""Forwards requests and responses: adds headers, removes secrets, counts bytes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import h11

from atoll.egress.credentials import Unpacker
from atoll.egress.http import MAX_HEADERS, PORTS, VALUE_BYTES, HttpPeer, forwarded, usual_name
from atoll.egress.rules import UnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from concurrent.futures import Executor

    from atoll.egress.addresses import Connector
    from atoll.egress.credentials import Secrets
    from atoll.egress.http import Headers
    from atoll.egress.redactor import Redactor
    from atoll.egress.rules import Entry, Rules
    from atoll.egress.streams import PlainStream
    from atoll.network import NetworkRequest

T = TypeVar("T")
_REPLACED = frozenset({b"host"})
_UNSEARCHABLE = frozenset({b"accept-encoding", b"accept-charset", b"a-im", b"range", b"if-range"})
"""Request headers that are dropped: compressed or partial responses would hide secrets."""
_FRAMING = frozenset({b"content-length", b"content-encoding"})
_LENGTH = frozenset({b"content-length"})
"""Response headers that are dropped: the response is sent in chunks, so a length is wrong."""
_OTHER_METHOD = re.compile(rb"x-.*method|.*method-override")
_OTHER_PATH = re.compile(rb"x-.*(?:ur[il]|path|prefix)")
"""Headers by which some servers use another method or path than the one that was checked, such as
`X-HTTP-Method-Override`, `X-Original-URL` and `X-Forwarded-Prefix`."""
MAX_HELD = 1 << 20
"""Bytes of a body that is held to count it, if values change its length."""
LOOP_WORK = 1 << 16
"""Bytes that the event loop itself searches for secrets at once; a thread searches more."""
_PER_HEADER = 256
"""Bytes whose search takes as long as to begin one."""


class Answer(Protocol):
    """Receives a server's response."""

    async def start(self, status: int, reason: bytes, headers: Headers) -> None:
        """Take status and headers."""
        ...

    async def data(self, piece: bytes) -> None:
        """Take a piece of the body."""
        ...

    async def end(self) -> None:
        """Finish: the response is complete."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """A request of the guest."""

    target: bytes
    headers: Headers
    body: AsyncIterator[bytes] | None
    """None for a request without one."""


class ServerSlot:
    """The connection to a server, which a guest's connection may reuse."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._stream: PlainStream | None = None
        self._peer: HttpPeer | None = None
        self._origin: tuple[str, str, int] | None = None

    async def get(self, asked: NetworkRequest) -> tuple[HttpPeer, bool]:
        """Return a connection for this request, and whether it was used before."""
        origin = (asked.scheme, asked.host, asked.port)
        if self._reusable(origin):
            assert self._peer is not None
            return self._peer, True
        self.close()
        self._stream = await self._connector.connect(asked, tls=asked.scheme == "https")
        self._peer, self._origin = HttpPeer(self._stream, h11.CLIENT), origin
        return self._peer, False

    def close(self) -> None:
        """Drop the connection."""
        if self._stream is not None:
            self._stream.abort()
        self._stream = self._peer = None

    def _reusable(self, origin: tuple[str, str, int]) -> bool:
        """SECURITY: bytes that a server sent unasked must not become the next response."""
        if self._peer is None or self._stream is None or self._origin != origin:
            return False
        if self._stream.has_unread() or not self._peer.reusable:
            return False
        if self._peer.h11.trailing_data != (b"", False):
            return False
        self._peer.h11.start_next_cycle()
        return True


class Forwarder:
    """Sends allowed requests to their servers."""

    def __init__(self, rules: Rules, secrets: Secrets, threads: Executor) -> None:
        self._rules, self._secrets, self._threads = rules, secrets, threads

    async def forward(
        self, entry: Entry, question: Question, answer: Answer, slot: ServerSlot
    ) -> None:
        """Send a request and pass the response on; UnreachableError without a response."""
        try:
            await self._exchange(entry, question, answer, slot)
        except (OSError, h11.ProtocolError) as exc:
            slot.close()
            raise UnreachableError(f"{entry.asked.place} failed: {_fault(exc)}") from None
        except BaseException:
            slot.close()
            raise

    async def _exchange(
        self, entry: Entry, question: Question, answer: Answer, slot: ServerSlot
    ) -> None:
        server, used_before = await slot.get(entry.asked)
        question = await self._unmasked(entry.asked, question)
        request = self._request(entry.asked, question)
        try:
            response = await _ask(server, request, question, entry)
        except (OSError, h11.RemoteProtocolError):
            if not used_before or question.body is not None:
                raise
            slot.close()  # the server closed the idle connection: use a new one
            server, _ = await slot.get(entry.asked)
            response = await _ask(server, request, question, entry)
        entry.status = response.status_code
        await self._pass_on(server, response, answer, entry)

    async def _unmasked(self, asked: NetworkRequest, question: Question) -> Question:
        """Return the request with values in place of the placeholders that the guest has."""
        swap = self._secrets.swap(asked)
        if not swap:
            return question
        target, headers = swap.text(question.target), swap.headers(question.headers)
        if question.body is None or swap.keeps_length:
            body = None if question.body is None else swap.body(question.body)
            return Question(target, headers, body)
        lengths = [int(value) for name, value in headers if name == b"content-length"]
        headers = [header for header in headers if header[0] != b"content-length"]
        if not lengths or lengths[0] > MAX_HELD:  # the server gets it in chunks
            return Question(target, headers, swap.body(question.body))
        data = b"".join([piece async for piece in swap.body(question.body)])
        headers.append((b"content-length", str(len(data)).encode()))
        return Question(target, headers, _pieces(data))

    def _request(self, asked: NetworkRequest, question: Question) -> h11.Request:
        added = self._rules.added_headers(asked)
        drop = _REPLACED | {usual_name(name.encode()) for name in added}
        drop |= _UNSEARCHABLE if self._secrets else frozenset()
        drop |= self._overrides(question.headers)
        usual = asked.port == PORTS[asked.scheme]
        host = asked.place.rpartition(":")[0] if usual else asked.place
        headers = [(b"host", host.encode()), *forwarded(question.headers, drop)]
        headers += [(name.encode(), value.encode()) for name, value in added.items()]
        if self._secrets:
            headers.append((b"accept-encoding", b"identity"))
        if question.body is not None and not any(name == b"content-length" for name, _ in headers):
            headers.append((b"transfer-encoding", b"chunked"))
        return h11.Request(method=asked.method, target=question.target, headers=headers)

    def _overrides(self, headers: Headers) -> frozenset[bytes]:
        """Return the names of headers that would undo a check of the method or path."""
        policy, names = self._rules.policy, {usual_name(name) for name, _ in headers}
        rules = ((policy.methods, _OTHER_METHOD), (policy.paths, _OTHER_PATH))
        patterns = [pattern for allowed, pattern in rules if allowed is not None]
        return frozenset(name for name in names if any(pattern.match(name) for pattern in patterns))

    async def _pass_on(
        self, server: HttpPeer, response: h11.Response, answer: Answer, entry: Entry
    ) -> None:
        redactor, traffic = self._secrets.redactor(), entry.traffic
        _check_size(response.headers)
        packed = self._unpacker(response)
        chunked = any(name == b"transfer-encoding" for name, _ in response.headers)
        drop = _FRAMING if packed else _LENGTH if chunked else frozenset[bytes]()
        try:
            size = sum(len(name) + len(value) + _PER_HEADER for name, value in response.headers)
            reason, headers = await self._off_loop(
                redactor, size, lambda: _clean_head(redactor, response, drop)
            )
            await answer.start(response.status_code, reason, headers)
            async for piece in server.body():
                for plain in packed.feed(piece) if packed else (piece,):
                    if packed:
                        traffic.budget.count_bytes(len(plain))
                    await self._give(answer, redactor, plain)
            await self._give(answer, redactor, b"", last=True)
            await answer.end()
        finally:
            traffic.redacted = redactor.count

    async def _give(
        self, answer: Answer, redactor: Redactor, piece: bytes, *, last: bool = False
    ) -> None:
        clean = await self._off_loop(redactor, len(piece), lambda: redactor.feed(piece, last=last))
        if clean:
            await answer.data(clean)

    async def _off_loop(self, redactor: Redactor, size: int, search: Callable[[], T]) -> T:
        """Run a search; in a thread if it takes long, as others wait for the event loop."""
        if redactor.work(size) <= LOOP_WORK:
            return search()
        return await asyncio.get_running_loop().run_in_executor(self._threads, search)

    def _unpacker(self, response: h11.Response) -> Unpacker | None:
        packings = [value for name, value in response.headers if name == b"content-encoding"]
        encodings = [value.decode("latin-1").strip().lower() for value in packings]
        if not self._secrets or not encodings or encodings == ["identity"]:
            return None
        return Unpacker(",".join(encodings))


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _fault(exc: Exception) -> str:
    """Return what failed. SECURITY: h11 and OpenSSL quote the server, which may quote a secret."""
    if isinstance(exc, h11.RemoteProtocolError):
        return "its response is not valid HTTP/1.1"
    if isinstance(exc, h11.LocalProtocolError):
        return "its response cannot be passed on"
    if isinstance(exc, ssl.SSLError):
        return "TLS failed"
    if isinstance(exc, ConnectionError):
        return "it closed the connection without a complete response"
    return os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else "no connection"


def _check_size(headers: Iterable[tuple[bytes, bytes]]) -> None:
    lines = list(headers)
    if len(lines) > MAX_HEADERS or any(
        len(name) + len(value) > VALUE_BYTES for name, value in lines
    ):
        raise UnreachableError(
            f"the server sent more than {MAX_HEADERS} headers, or one of more than {VALUE_BYTES} "
            f"bytes"
        )


def _clean_head(
    redactor: Redactor, response: h11.Response, drop: frozenset[bytes]
) -> tuple[bytes, Headers]:
    """Return a response's reason and headers without secrets."""
    return redactor.whole(response.reason), [
        (redactor.whole(name), redactor.whole(value))
        for name, value in forwarded(response.headers, drop)
    ]


async def _ask(
    server: HttpPeer, request: h11.Request, question: Question, entry: Entry
) -> h11.Response:
    """Send a request and return the head of its response, which may come before all is sent."""
    server.on_sent, server.on_received = entry.traffic.count_sent, entry.traffic.count_received
    await server.send(request)
    if question.body is None:
        await server.send(h11.EndOfMessage())
        return await _response(server)
    upload = asyncio.ensure_future(_upload(server, question.body))
    answered = asyncio.ensure_future(_response(server))
    try:
        await asyncio.wait({upload, answered}, return_when=asyncio.FIRST_COMPLETED)
        if upload.done() and (failure := upload.exception()) is not None:
            raise failure
        return await answered
    finally:
        for task in (upload, answered):
            if not task.done():  # a server that answers early does not want the rest
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def _upload(server: HttpPeer, body: AsyncIterator[bytes]) -> None:
    async for piece in body:
        try:
            await server.send(h11.Data(data=piece))
        except OSError:
            return  # the server reads no more: its answer says why
    with contextlib.suppress(OSError):
        await server.send(h11.EndOfMessage())


async def _response(server: HttpPeer) -> h11.Response:
    while True:
        event = await server.next_event()
        if isinstance(event, h11.Response):
            return event
        if not isinstance(event, h11.InformationalResponse):
            raise ConnectionError("it closed the connection without an answer")
