"""One HTTP request as a handler sees it: who makes it, its body under limits, its answer."""

from __future__ import annotations

import asyncio
import hashlib
import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response

from atoll.errors import AtollError
from atoll.guest.shared import rpc
from atoll.service import clock
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, encode, of_error
from atoll.service.http.streams import event
from atoll.service.settings import variable
from atoll.service.storage.idempotency import Answer, IdempotencyScope

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from atoll.service.access.admission import Holding
    from atoll.service.access.audit import Action
    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.streams import Event

T = TypeVar("T")
NDJSON, SSE = "application/x-ndjson", "text/event-stream"
SLOWER_FOR_FILES = 10
MAX_PARAMETERS = 100
CHECK_SECONDS = 5.0
"""How often the key of a request is looked at again while its body arrives."""
MAX_BODY_WITHOUT_KEY = 8 << 10
"""Bytes read of a body before the key is checked."""
LARGE_BODY = 64 << 10
"""A body from this size on is decoded in a thread."""
VALUE_BYTES = 128
"""What a value of a JSON body takes in memory besides its text, at most."""
_WIDE = re.compile(rb"[\xf0-\xff]|\\u[dD][89abAB]")
_TWO_BYTES = re.compile(rb"[\xc4-\xff]|\\u")


@dataclass(slots=True)
class ApiRequest:
    """A request that was let in."""

    service: Service
    request: Request
    principal: Principal
    held: Holding
    """What the request makes the service hold, until its answer is sent."""
    path: dict[str, str] = field(default_factory=dict)
    fingerprint: bytes = b""
    """The SHA-256 of the body, once that was read."""

    async def body(self, most: int | str = "max_body_bytes") -> bytes:
        """Return the body; 413 if it is too large, 408 if it takes too long."""
        pieces = bytearray()
        async for piece in self.pieces(most):
            self.held.grow(len(piece))
            pieces += piece
        body = bytes(pieces)
        self.fingerprint = hashlib.sha256(body).digest()
        return body

    async def json(
        self,
        shape: type[T],
        *,
        read: Callable[[bytes, type[T]], T] = bodies.read,
        most: int | str = "max_body_bytes",
    ) -> T:
        """Return a JSON body in its shape; 413 if it has more values than may be decoded.

        What is held afterwards is the size of the decoded values: the body itself is dropped.
        """
        body = await self.body(most)
        if len(body) < LARGE_BODY:
            if len(body) > rpc.MAX_DEPTH:  # a shorter one cannot be too deep
                check_structure(body)
            return read(body, shape)
        cost = await asyncio.to_thread(decoded_size, body)
        self.held.resize(len(body) + cost)
        value = await asyncio.to_thread(read, body, shape)
        del body
        self.held.resize(cost)
        return value

    async def pieces(
        self, most: int | str, *, slow: bool = False, seconds: float | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the body as it comes; `slow` or `seconds` say how long it may take.

        `most` is a number of bytes, or the name of the service's setting that has it. The caller
        counts what it keeps of a piece. Of a `slow` body, each window of `body_seconds` has to
        bring its share of bytes.
        """
        settings, loop = self.service.settings, asyncio.get_running_loop()
        limit = getattr(settings, most) if isinstance(most, str) else most
        limit = limit if self.principal.key else min(limit, MAX_BODY_WITHOUT_KEY)
        length = self.request.headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit, most)
        window = settings.body_seconds
        share = int(window * settings.body_bytes_per_second)
        if seconds is None:
            seconds = window * SLOWER_FOR_FILES if slow else window
        end = loop.time() + seconds
        deadline = min(end, loop.time() + window) if slow else end
        size, in_window, more, checked = 0, 0, True, clock.now()
        while more:
            try:
                async with asyncio.timeout_at(deadline):
                    message = await self.request.receive()
            except TimeoutError:
                text = f"the body did not arrive within {seconds:g} s: send it faster"
                raise Problem(408, "slow", text) from None
            if clock.now() - checked > CHECK_SECONDS:  # a body may take a day
                checked = clock.now()
                self.service.streams.check(self.principal)
            if message["type"] == "http.disconnect":
                raise Problem(400, "disconnected", "the body ended before it was whole")
            piece, more = message.get("body", b""), message.get("more_body", False)
            size, in_window = size + len(piece), in_window + len(piece)
            if size > limit:
                raise _too_large(limit, most)
            if slow and in_window >= share:
                in_window, deadline = 0, min(end, loop.time() + window)
            yield piece

    def query(self, name: str, default: str = "") -> str:
        """Return a parameter of the query."""
        query: str = self.request.scope["query_string"].decode("latin-1")
        try:
            pairs = parse_qsl(query, True, errors="surrogateescape", max_num_fields=MAX_PARAMETERS)
        except ValueError:
            text = f"the query has more than {MAX_PARAMETERS} parameters"
            raise Problem(400, "invalid", text) from None
        return dict(pairs).get(name, default)

    def flag(self, name: str) -> bool:
        """Return whether a parameter of the query is 1 or true."""
        return self.query(name).lower() in ("1", "true")

    def number(self, name: str, default: int) -> int:
        """Return a parameter of the query that is a whole number."""
        text = self.query(name) or str(default)
        if not text.isdecimal() or len(text) > 18:
            raise Problem(400, "invalid", f"{name} must be a whole number, not {text[:50]!r}")
        return int(text)

    def audit(self, action: Action, target: str = "", **detail: str | float | None) -> None:
        """Write down that the request's key is about to do something."""
        who = self.principal
        self.service.audit.note(action, target, key=who.key, tenant=who.tenant, **detail)

    @property
    def session(self) -> HostedSession:
        """The session that the path names; 404 if the tenant has none of that id."""
        return self.service.sessions.get(self.principal, self.path["session"])

    @property
    def after(self) -> int:
        """The number of the event that a reader has seen last: Last-Event-ID, or `after`."""
        last = self.request.headers.get("last-event-id", "")
        return int(last) if last.isdecimal() and len(last) < 19 else self.number("after", 0)

    @property
    def idempotency(self) -> IdempotencyScope | None:
        """What the request's idempotency key stands for, once the body was read; None without."""
        key = self.request.headers.get("idempotency-key")
        if key is None:
            return None
        route = f"{self.request.method} {self.request.url.path}"
        return IdempotencyScope(self.principal.tenant, route, key, self.fingerprint)

    @property
    def wants_events(self) -> bool:
        """Whether the client asks for events as they come, in place of one answer."""
        accept = self.request.headers.get("accept", "")
        return NDJSON in accept or SSE in accept

    async def once(self, work: Callable[[], Awaitable[T]], status: int = 201) -> Json[T]:
        """Answer with the result of `work`, done once if the request has an idempotency key."""

        async def do() -> Answer:
            return Answer(status, encode(await work()))

        if (scope := self.idempotency) is None:
            answer, again = await do(), False
        else:
            room = self.service.stored.reserve(self.principal)
            answer, again = await self.service.answers.once(scope, room, do)
        return Json.of(answer, again=again)


def decoded_size(body: bytes) -> int:
    """Return what a JSON body takes once it is decoded, at most; 413 if that is too many values."""
    check_structure(body)
    values = min(sum(map(body.count, (b",", b"[", b"{"))), rpc.MAX_ITEMS)
    width = 4 if _WIDE.search(body) else 2 if _TWO_BYTES.search(body) else 1
    return len(body) * width + values * VALUE_BYTES


def check_structure(body: bytes) -> None:
    """Refuse a JSON body with too many or too deeply nested values, before it is decoded."""
    try:
        rpc.check_structure(body)
    except rpc.ProtocolError as exc:
        if str(exc).startswith("nested"):
            raise Problem(400, "invalid", f"the body is {exc}") from None
        text = f"the body has {exc}: send less, or upload it as a context or a file"
        raise Problem(413, "too_large", text) from None


class PieceResponse(Response):
    """An answer whose body comes in pieces; a client that goes away ends it."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        raise NotImplementedError

    async def close(self) -> None:
        """Free what the pieces are read from; called in any case."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the answer."""
        try:
            start = {"type": "http.response.start", "status": self.status_code}
            await send({**start, "headers": self.raw_headers})
            await until_gone(receive, self._send(send))
        finally:
            await self.close()

    async def _send(self, send: Send) -> None:
        async for piece in self.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class EventResponse(Response):
    """Streams events as they come, as NDJSON or SSE; `on_gone` is called if the reader leaves.

    The last event is a `fault` if the key is revoked meanwhile, or the `session` ends whose events
    these are.
    """

    def __init__(
        self,
        call: ApiRequest,
        events: AsyncIterator[list[Event]],
        on_gone: Callable[[], None] | None = None,
        headers: dict[str, str] | None = None,
        session: str = "",
    ) -> None:
        self._open = partial(call.service.streams.open, call.principal, session)
        self._sse = SSE in call.request.headers.get("accept", "")
        usual = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(None, 200, usual | (headers or {}), SSE if self._sse else NDJSON)
        del self.headers["content-length"]
        self._events, self._on_gone, self._cut_off = events, on_gone, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send events until the last one, or until the reader is gone."""
        read = await until_gone(receive, self._stream(send))
        if (self._cut_off or not read) and self._on_gone is not None:
            self._on_gone()

    async def _stream(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        last = b""
        with self._open() as stream:
            try:
                async for events in self._events:
                    body = self._encoded(events)
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            except asyncio.CancelledError:
                if (problem := stream.interrupted()) is None:
                    raise
                last, self._cut_off = self._fault(problem), True
            except ConnectionAbortedError:  # the reader has to see that the end is missing
                return
            except (AtollError, Problem) as exc:  # the answer has begun: only an event can say so
                last = self._fault(of_error(exc))
        await send({"type": "http.response.body", "body": last, "more_body": False})

    def _fault(self, problem: Problem) -> bytes:
        """Return the last event of a stream that cannot go on."""
        return self._encoded([event("fault", problem=problem.describe())])

    def _encoded(self, events: list[Event]) -> bytes:
        return b"".join(map(_as_sse, events) if self._sse else (e[2] + b"\n" for e in events))


def _as_sse(event: Event) -> bytes:
    seq, kind, line = event
    ident = b"id: %d\n" % seq if seq else b""
    return ident + b"event: " + kind.encode() + b"\ndata: " + line + b"\n\n"


async def until_gone(receive: Receive, work: Awaitable[Any]) -> bool:
    """Do the work; return False, with the work cancelled, if the client went away meanwhile."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
            return True
        return False
    finally:
        leaving.cancel()
        doing.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Json(Response, Generic[T]):
    """A JSON answer of the shape T, for a handler that sets the status or headers."""

    def __init__(
        self, value: T, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(encode(value), status, headers, "application/json")

    @classmethod
    def of(cls, answer: Answer, *, again: bool = False) -> Self:
        """Return an answer whose JSON is known; `again` if it was given before."""
        kind = "application/problem+json" if answer.status >= 400 else "application/json"
        headers = {"idempotent-replayed": "true"} if again else {}
        if answer.status in (429, 503):
            wait = msgspec.json.decode(answer.body).get("retry_after_seconds")
            headers |= {} if wait is None else {"retry-after": str(wait)}
        made = cls.__new__(cls)
        Response.__init__(made, answer.body, answer.status, headers, kind)
        return made


def _too_large(limit: int, most: int | str) -> Problem:
    text = f"the body may have at most {limit:,} bytes: send less, or in parts"
    if isinstance(most, str):
        text += f". The service's operator can raise the limit: {variable(most)}"
    return Problem(413, "too_large", text)
