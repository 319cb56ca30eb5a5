"""The proxy between visitors and servers in sessions: HTTP, server-sent events, websockets.

    browser ──▶ listener of its own ──▶ Host, token, Origin, limits ──▶ server in the guest

SECURITY: both sides are hostile. h11 parses each message, and it is written anew; ambiguous lengths
are refused; each request has a connection of its own to the server. Cookies and keys of the
service never reach a guest, and a guest sets cookies for its own host alone. A page of another
origin, such as another tenant's preview, cannot act by a visitor's cookie.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

import h11

from atoll.concurrency.background import both_ways
from atoll.egress.http import HttpPeer, forwarded
from atoll.egress.streams import PlainStream, pump
from atoll.errors import AtollError, PortError, UnsupportedError
from atoll.service.http.problems import Problem, of_error
from atoll.service.previews import links

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from atoll.egress.http import Headers
    from atoll.service.core.service import Service
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.previews.previews import Previews, Visit

IDLE_SECONDS = 60.0
LOOK_SECONDS = 1.0
"""Between looks whether a visitor who waits for an answer is still there."""
READ_BYTES = 1 << 16
CONNECTION_BYTES = 5 * READ_BYTES
"""What a connection holds at most: the buffers of both sides, and a head."""
_HEADER = links.TOKEN.encode()
_TRAFFIC = b"e2b-traffic-access-token"
_TO_GUEST = frozenset(
    {_HEADER, _TRAFFIC, b"cookie", b"x-api-key", b"x-access-token", b"x-atoll-csrf", b"forwarded"}
    | {b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port"}
    | {b"x-real-ip", b"authorization"}
)
"""Headers that are not passed on as they came."""
_TO_VISITOR = frozenset(
    {b"set-cookie", b"clear-site-data", b"alt-svc", b"strict-transport-security"}
)
"""Headers by which a guest would act on more than its own host, or its own port."""
_LENGTH = frozenset({b"content-length"})
_OWN_COOKIE = re.compile(r"(__Host-)?atoll([_-].*)?\Z", re.IGNORECASE)
_OWN_KEY = re.compile(rb"\s*bearer\s+atl_", re.IGNORECASE)
_SITES = ("same-origin", "none")


class PreviewProxy:
    """Serves the connections of visitors."""

    def __init__(self, previews: Previews, service: Service) -> None:
        self._previews, self._service = previews, service
        self._connections: set[asyncio.Task[None]] = set()
        self._visits: defaultdict[tuple[str, int], set[asyncio.Task[None]]] = defaultdict(set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        stream = VisitorStream(reader, writer, self._service.settings.stall_seconds)
        try:
            if len(self._connections) <= self._service.settings.max_connections:
                await self._converse(HttpPeer(stream, h11.SERVER))
        except (OSError, TimeoutError, EOFError, h11.ProtocolError):
            pass  # the visitor has gone, or does not speak HTTP
        except asyncio.CancelledError:
            stream.abort()
        finally:
            self._connections.discard(task)
            stream.close()

    async def close(self) -> None:
        """Close every connection."""
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def end_visits(self, hosted: HostedSession, port: int) -> None:
        """Close the connections with a port of a session."""
        for task in list(self._visits.get((hosted.id, port), ())):
            task.cancel()

    async def _converse(self, visitor: HttpPeer) -> None:
        seconds = self._service.settings.header_seconds
        while True:
            async with asyncio.timeout(seconds):
                try:
                    event = await visitor.next_event()
                except h11.RemoteProtocolError as exc:
                    await refuse(visitor, Problem(400, "framing", f"not HTTP: {exc}"))
                    return
            if not isinstance(event, h11.Request):
                return
            if not await self._answer(visitor, event) or not visitor.reusable:
                return
            visitor.h11.start_next_cycle()
            seconds = IDLE_SECONDS

    async def _answer(self, visitor: HttpPeer, request: h11.Request) -> bool:
        """Answer one request; return whether another may follow."""
        try:
            check_request(request)
            visit, target, redirect = self._admit(request)
            if redirect is not None:
                await answer(visitor, 303, redirect)
                return False
            return await self._visit(visitor, request, visit, target)
        except (Problem, AtollError) as exc:
            problem = _explained(exc)
            self._service.metrics.answered("(preview)", "GET", problem.status, 0, problem.code)
            await refuse(visitor, problem)
            return False

    def _admit(self, request: h11.Request) -> tuple[Visit, bytes, Headers | None]:
        """Return whom a request visits, its target without a token, and a redirect if it gets one.

        A browser that comes with a token in the address gets a cookie for it, and a clean address.
        """
        headers, site = dict(request.headers), self._previews.site
        target, asked = _without_token(request.target)
        host, traffic = _text(headers, b"host"), _text(headers, _TRAFFIC)
        shown = asked or _text(headers, _HEADER)
        by_cookie = not shown
        for token in [shown] if shown else [*cookies_named(request.headers, site.cookie), ""]:
            try:
                visit = self._previews.visit(host, token, traffic)
            except Problem:
                if token == "" or shown:
                    raise
            else:
                break
        if by_cookie and visit.token_seconds:
            _check_origin(headers, request.method, visit.origin)
        if not asked or headers.get(b"sec-fetch-mode") != b"navigate":
            return visit, target, None
        cookie = site.set_cookie(asked, visit.token_seconds)
        where = visit.origin.encode() + target  # whole: // begins another host
        return visit, target, [(b"location", where), (b"set-cookie", cookie.encode())]

    async def _visit(
        self, visitor: HttpPeer, request: h11.Request, visit: Visit, target: bytes
    ) -> bool:
        service, hosted, task = self._service, visit.hosted, asyncio.current_task()
        assert task is not None
        with (
            self._previews.limits.connection(visit.principal),
            service.memory.admit(visit.principal, CONNECTION_BYTES, "a visitor's connection"),
            service.streams.open(visit.principal, hosted.id),
        ):
            visits = self._visits[hosted.id, visit.port]
            visits.add(task)
            try:
                server = await _connect(hosted, visit.port)
                try:
                    exchange = Exchange(visitor, server, partial(self._count, visit))
                    status = await exchange.run(request, target, visit)
                finally:
                    server.abort()
            finally:
                visits.discard(task)
                if not visits:
                    self._visits.pop((hosted.id, visit.port), None)
        service.metrics.answered("(preview)", request.method.decode(), status, 0, "")
        return exchange.complete

    def _count(self, visit: Visit, size: int) -> None:
        visit.hosted.touch()
        self._previews.limits.count(visit.principal, size)


class VisitorStream(PlainStream):
    """A visitor's connection; one who reads nothing for too long is cut off."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float
    ) -> None:
        super().__init__(reader, writer, acknowledge=False)
        self._seconds = seconds
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    @property
    def at_end(self) -> bool:
        """Whether the visitor has closed the connection."""
        return self._reader.at_eof()

    async def write(self, data: bytes) -> None:
        """Send bytes; TimeoutError if the visitor takes none."""
        async with asyncio.timeout(self._seconds):
            await super().write(data)


class Exchange:
    """One request to a server of a guest, and its answer."""

    def __init__(
        self, visitor: HttpPeer, server: PlainStream, count: Callable[[int], None]
    ) -> None:
        assert isinstance(visitor.stream, VisitorStream)
        self._visitor, self._visitor_stream = visitor, visitor.stream
        self._stream, self._count = server, count
        self._server = HttpPeer(server, h11.CLIENT)
        self._server.on_sent = self._server.on_received = count
        self.complete = self._sent = False
        """Whether the visitor's connection can go on."""

    async def run(self, request: h11.Request, target: bytes, visit: Visit) -> int:
        """Pass the request on, and its answer back; return the answer's status."""
        switches = is_websocket(request)
        headers = _to_guest(request, visit, switches=switches)
        sending = asyncio.ensure_future(self._send(request, target, headers))
        try:
            answered = await self._head(sending)
            if isinstance(answered, h11.InformationalResponse):
                await self._switch(answered)
                return 101
            await self._pass_back(answered, visit)
            self.complete = self._sent
            return answered.status_code
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await sending

    async def _send(self, request: h11.Request, target: bytes, headers: Headers) -> None:
        """Send the request; end the connection if the visitor is gone before its answer."""
        try:
            server, visitor = self._server, self._visitor
            await server.send(h11.Request(method=request.method, target=target, headers=headers))
            if visitor.h11.they_are_waiting_for_100_continue:
                await visitor.send(h11.InformationalResponse(status_code=100, headers=[]))
            async for piece in visitor.body():
                await server.send(h11.Data(data=piece))
            await server.send(h11.EndOfMessage())
            self._sent = True
            while not self._visitor_stream.at_end:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(LOOK_SECONDS)
        except OSError:
            return  # the server reads no more; it may have answered
        except BaseException:
            self._stream.abort()
            raise
        self._stream.abort()

    async def _head(
        self, sending: asyncio.Future[None]
    ) -> h11.Response | h11.InformationalResponse:
        """Return the head of the answer; Problem if the server gives none."""
        with contextlib.suppress(OSError, h11.ProtocolError):
            while True:
                event = await self._server.next_event()
                if isinstance(event, h11.Response):
                    return event
                if not isinstance(event, h11.InformationalResponse):
                    break  # the server has closed the connection
                if event.status_code == 101:
                    return event
        if sending.done() and isinstance(fault := sending.exception(), Problem):
            raise fault
        text = "the server in the sandbox closed the connection, or does not speak HTTP"
        raise Problem(502, "preview_server", text)

    async def _pass_back(self, response: h11.Response, visit: Visit) -> None:
        chunked = any(name == b"transfer-encoding" for name, _ in response.headers)
        drop = _TO_VISITOR | (_LENGTH if chunked else frozenset())
        headers = [*forwarded(response.headers, drop), *_own_cookies(response.headers)]
        if visit.token_seconds and not any(name == b"cache-control" for name, _ in headers):
            headers.append((b"cache-control", b"private"))
        status, reason = response.status_code, response.reason
        visitor = self._visitor
        await visitor.send(h11.Response(status_code=status, headers=headers, reason=reason))
        try:
            async for piece in self._server.body():
                await visitor.send(h11.Data(data=piece))
        except h11.RemoteProtocolError:
            raise EOFError from None  # the server broke off: so does the answer
        await visitor.send(h11.EndOfMessage())

    async def _switch(self, response: h11.InformationalResponse) -> None:
        """Carry the frames of a websocket both ways until one side closes it."""
        named = [(b"upgrade", b"websocket"), (b"connection", b"upgrade")]
        headers = [*forwarded(response.headers, _TO_VISITOR | _LENGTH), *named]
        switched = h11.InformationalResponse(
            status_code=101, headers=headers, reason=response.reason
        )
        await self._visitor.send(switched)
        first, _ = self._server.h11.trailing_data
        early, _ = self._visitor.h11.trailing_data
        visitor, server = self._visitor_stream, self._stream
        await visitor.write(first)
        await server.write(early)
        await both_ways(
            pump(visitor, server, self._count),
            pump(server, visitor, self._count),
            until=asyncio.FIRST_COMPLETED,
        )


async def _connect(hosted: HostedSession, port: int) -> PlainStream:
    """Return a connection with a server in a session; Problem if it is paused."""
    if hosted.state != "running":
        raise Problem(503, "paused", "the sandbox of this preview is paused", retry_after=10)
    connection = await hosted.session.at_once(lambda box: box.connect(port))
    try:
        reader, writer = await asyncio.open_connection(sock=connection, limit=READ_BYTES)
    except BaseException:
        connection.close()
        raise
    return PlainStream(reader, writer, acknowledge=False)


def check_request(request: h11.Request) -> None:
    """Refuse what servers read in two ways, and what is not for a host: 400, 405."""
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names and (
        b"content-length" in names or request.http_version != b"1.1"
    ):
        raise Problem(400, "framing", "send Content-Length or Transfer-Encoding, not both")
    if request.method in (b"CONNECT", b"TRACE"):
        raise Problem(405, "method", "a preview does not serve this method")
    if not request.target.startswith(b"/") and (request.method, request.target) != (
        b"OPTIONS",
        b"*",
    ):
        raise Problem(400, "invalid", "the target of a request must begin with /")


def is_websocket(request: h11.Request) -> bool:
    """Return whether a request asks to go on as a websocket; no other protocol is served."""
    headers = dict(request.headers)
    named = {part.strip().lower() for part in headers.get(b"connection", b"").split(b",")}
    return (
        request.method == b"GET"
        and headers.get(b"upgrade", b"").lower() == b"websocket"
        and b"upgrade" in named
    )


def cookies_named(headers: Iterable[tuple[bytes, bytes]], name: str) -> list[str]:
    """Return the values of a cookie: another host of the domain may have added one."""
    pairs = [pair.partition("=") for pair in _cookies(headers)]
    return [value for key, _, value in pairs if key == name][:8]


def _cookies(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    given = [value.decode("latin-1") for name, value in headers if name == b"cookie"]
    return [pair.strip() for text in given for pair in text.split(";") if pair.strip()]


def _to_guest(request: h11.Request, visit: Visit, *, switches: bool) -> Headers:
    """Return the headers for the server: without what belongs to the service."""
    headers = forwarded(request.headers, _TO_GUEST)
    kept = [pair for pair in _cookies(request.headers) if not _OWN_COOKIE.match(pair.split("=")[0])]
    if kept:
        headers.append((b"cookie", "; ".join(kept).encode("latin-1")))
    headers += [
        (name, value)
        for name, value in request.headers
        if name == b"authorization" and not _OWN_KEY.match(value)
    ]
    scheme, _, host = visit.origin.partition("://")
    headers += [(b"x-forwarded-proto", scheme.encode()), (b"x-forwarded-host", host.encode())]
    if switches:
        return [*headers, (b"upgrade", b"websocket"), (b"connection", b"upgrade")]
    if any(name == b"transfer-encoding" for name, _ in request.headers):
        headers.append((b"transfer-encoding", b"chunked"))
    return [*headers, (b"connection", b"close")]


def _own_cookies(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return a server's cookies, for its own host alone, without those that are ours by name."""
    cookies = []
    for name, value in headers:
        if name != b"set-cookie":
            continue
        pair, *rules = value.split(b";")
        rules = [rule for rule in rules if rule.strip().partition(b"=")[0].lower() != b"domain"]
        if not _OWN_COOKIE.match(pair.partition(b"=")[0].strip().decode("latin-1")):
            cookies.append((name, b";".join([pair, *rules])))
    return cookies


def _check_origin(headers: dict[bytes, bytes], method: bytes, own: str) -> None:
    """Refuse a request that another page makes with the visitor's cookie; a link may lead here."""
    site = headers.get(b"sec-fetch-site", b"same-origin").decode("latin-1")
    navigates = (
        method in (b"GET", b"HEAD")
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )
    origin = headers.get(b"origin")
    foreign = origin is not None and origin.decode("latin-1").lower() != own
    if foreign or (site not in _SITES and not navigates):
        text = "another page may not use your access to this preview"
        raise Problem(403, "origin", text)


def _without_token(target: bytes) -> tuple[bytes, str]:
    """Return a target without the token in its query, and the token."""
    path, mark, query = target.partition(b"?")
    if _HEADER not in query:
        return target, ""
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        raise Problem(400, "invalid", "the query has too many parameters") from None
    tokens = [value for name, value in pairs if name == links.TOKEN]
    rest = urlencode([(name, value) for name, value in pairs if name != links.TOKEN])
    return path + (mark + rest.encode() if rest else b""), tokens[0] if tokens else ""


def _text(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


def _explained(exc: Exception) -> Problem:
    """Return an error as visitors see it."""
    if isinstance(exc, PortError):
        return Problem(502, "preview_server", f"port {exc.port} of the sandbox: {exc.reason}")
    if isinstance(exc, AtollError) and not isinstance(exc, UnsupportedError):
        return Problem(502, "preview_server", "the sandbox of this preview has ended")
    return of_error(exc)


async def refuse(visitor: HttpPeer, problem: Problem) -> None:
    """Answer with why there is nothing to see, as plain text."""
    headers: Headers = [(b"x-atoll-refused", problem.code.encode())]
    if problem.retry_after is not None:
        headers.append((b"retry-after", str(max(1, round(problem.retry_after))).encode()))
    await answer(visitor, problem.status, headers, f"{problem.detail}\n")


async def answer(visitor: HttpPeer, status: int, headers: Headers, text: str = "") -> None:
    """Send an answer of our own, after which the connection closes."""
    if visitor.h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    body = text.encode()
    own = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
        (b"connection", b"close"),
    ]
    with contextlib.suppress(OSError, TimeoutError, h11.LocalProtocolError):
        await visitor.send(h11.Response(status_code=status, headers=[*own, *headers]))
        await visitor.send(h11.Data(data=body))
        await visitor.send(h11.EndOfMessage())
        await visitor.drain()
