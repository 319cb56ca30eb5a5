"""How E2B writes things: errors of its two protocols, frames of Connect streams."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct
from starlette.responses import Response

from atoll.service.core.sessions import MAX_PAGE
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, encode
from atoll.service.http.requests import EventResponse, check_structure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.service.http.requests import ApiRequest
    from atoll.service.http.streams import Event


class _Listed(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T")
L = TypeVar("L", bound=_Listed)
STREAM = "application/connect+json"
_HEAD = struct.Struct(">BI")
_LAST = 2
MAX_MESSAGE = 4 << 20
_STATUSES = {
    "invalid_argument": (400, 422),
    "unauthenticated": (401,),
    "permission_denied": (403,),
    "not_found": (404,),
    "deadline_exceeded": (408,),
    "already_exists": (409,),
    "unavailable": (410, 502, 503),
    "resource_exhausted": (413, 429, 507),
    "canceled": (499,),
    "internal": (500,),
    "unimplemented": (501,),
}
_CODES = {status: code for code, statuses in _STATUSES.items() for status in statuses}


class Empty(Struct):
    """An answer that says only that it was done."""


def refuse(problem: Problem, _request_id: str) -> Response:
    """Return an error of a REST route."""
    status = 404 if problem.status == 410 else problem.status
    headers = {}
    if problem.retry_after is not None:
        headers["retry-after"] = str(max(1, round(problem.retry_after)))
    elif status in (429, 502, 503, 504):
        headers["should-retry"] = "false"
    return Response(
        encode({"code": status, "message": problem.detail}), status, headers, "application/json"
    )


def refuse_call(problem: Problem, _request_id: str) -> Response:
    """Return an error of a unary RPC."""
    return Response(encode(_error(problem)), problem.status, media_type="application/json")


def refuse_stream(problem: Problem, _request_id: str) -> Response:
    """Return an error of a streaming RPC, whose status is 200 all the same."""
    return Response(last_frame(problem), 200, media_type=STREAM)


def frame(message: Any) -> bytes:
    """Return one message of a stream."""
    body = encode(message)
    return _HEAD.pack(0, len(body)) + body


def last_frame(problem: Problem | None = None) -> bytes:
    """Return the end of a stream."""
    body = encode({} if problem is None else {"error": _error(problem)})
    return _HEAD.pack(_LAST, len(body)) + body


async def messages(
    call: ApiRequest, shape: type[T], seconds: float | None = None
) -> AsyncIterator[T]:
    """Yield the messages of a streamed request as they come; 400 if they cannot be read."""
    rest = b""
    async for piece in call.pieces("max_body_bytes", seconds=seconds):
        call.held.resize(len(rest) + len(piece))
        rest, at = rest + piece, 0
        while len(rest) - at >= _HEAD.size:
            flags, length = _HEAD.unpack_from(rest, at)
            if flags & ~_LAST or length > MAX_MESSAGE:
                raise Problem(400, "invalid", "a frame is compressed, unknown, or too long")
            if len(rest) - at < _HEAD.size + length:
                break
            at += _HEAD.size + length
            if not flags & _LAST:
                check_structure(rest[at - length : at])
                yield bodies.read(rest[at - length : at], shape)
        rest = rest[at:]
    if rest:
        raise Problem(400, "invalid", "a frame of the stream is cut off")


async def message(call: ApiRequest, shape: type[T]) -> T:
    """Return the only message of a streamed request; 400 if there are none or several."""
    received = [message async for message in messages(call, shape)]
    if len(received) != 1:
        raise Problem(400, "invalid", f"the request has one message, not {len(received)}")
    return received[0]


def page(call: ApiRequest, own: list[L]) -> tuple[list[L], dict[str, str]]:
    """Return the part of a list that a request asks for, and the header that names the next."""
    limit = max(1, min(call.number("limit", 100), MAX_PAGE))
    idents = [listed.id for listed in own]
    token = call.query("nextToken")
    begin = idents.index(token) + 1 if token in idents else 0
    more = begin + limit < len(own)
    headers = {"x-next-token": idents[begin + limit - 1]} if more else {}
    return own[begin : begin + limit], headers


class FrameResponse(EventResponse):
    """Streams the frames of a Connect response."""

    def __init__(
        self, call: ApiRequest, frames: AsyncIterator[list[Event]], session: str = ""
    ) -> None:
        super().__init__(call, frames, session=session)
        self._sse = False
        self.headers["content-type"] = STREAM

    def _encoded(self, events: list[Event]) -> bytes:
        return b"".join(event[2] for event in events)

    def _fault(self, problem: Problem) -> bytes:
        return last_frame(problem)


def _error(problem: Problem) -> dict[str, str]:
    return {"code": _CODES.get(problem.status, "unknown"), "message": problem.detail}
