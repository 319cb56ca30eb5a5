"""How E2B writes things: errors of its two protocols, frames of Connect streams."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from atoll.service.http.problems import Problem, encode
from atoll.service.http.requests import EventResponse, check_structure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.service.core.executions import Event
    from atoll.service.http.requests import Call

STREAM = "application/connect+json"
_HEAD = struct.Struct(">BI")
_LAST = 2
MOST_MESSAGE = 4 << 20
_CODES = {
    400: "invalid_argument", 401: "unauthenticated", 403: "permission_denied", 404: "not_found",
    408: "deadline_exceeded", 409: "already_exists", 410: "unavailable", 413: "resource_exhausted",
    422: "invalid_argument", 429: "resource_exhausted", 499: "canceled", 500: "internal",
    501: "unimplemented", 502: "unavailable", 503: "unavailable", 507: "resource_exhausted",
}  # fmt: skip


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


async def messages(call: Call, seconds: float | None = None) -> AsyncIterator[dict[str, Any]]:
    """Yield the messages of a streamed request as they come; 400 if they cannot be read."""
    rest = b""
    async for piece in call.pieces("max_body_bytes", seconds=seconds):
        call.held.resize(len(rest) + len(piece))
        rest, at = rest + piece, 0
        while len(rest) - at >= _HEAD.size:
            flags, length = _HEAD.unpack_from(rest, at)
            if flags & ~_LAST or length > MOST_MESSAGE:
                raise Problem(400, "invalid", "a frame is compressed, unknown, or too long")
            if len(rest) - at < _HEAD.size + length:
                break
            at += _HEAD.size + length
            if not flags & _LAST:
                check_structure(rest[at - length : at])
                yield parse(rest[at - length : at])
        rest = rest[at:]
    if rest:
        raise Problem(400, "invalid", "a frame of the stream is cut off")


async def message(call: Call) -> dict[str, Any]:
    """Return the only message of a streamed request; 400 if there are none or several."""
    found: dict[str, Any] | None = None
    async for one in messages(call):
        if found is not None:
            raise Problem(400, "invalid", "the request has one message, not several")
        found = one
    if found is None:
        raise Problem(400, "invalid", "the request has one message")
    return found


def parse(body: bytes) -> dict[str, Any]:
    """Return a message; 400 if it is not a JSON object."""
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Problem(400, "invalid", "the message is not a JSON object")
    return found


def text_of(given: dict[str, Any], name: str) -> str:
    """Return a field that has to be a text; 400 if it is something else."""
    found = given.get(name, "")
    if not isinstance(found, str):
        raise Problem(400, "invalid", f"{name} is not a text")
    return found


class FrameResponse(EventResponse):
    """Streams the frames of a Connect response."""

    def __init__(self, call: Call, frames: AsyncIterator[list[Event]], session: str = "") -> None:
        super().__init__(call, frames, session=session)
        self._sse = False
        self.headers["content-type"] = STREAM

    def _encoded(self, events: list[Event]) -> bytes:
        return b"".join(event[2] for event in events)

    def _fault(self, problem: Problem) -> bytes:
        return last_frame(problem)


def _error(problem: Problem) -> dict[str, str]:
    return {"code": _CODES.get(problem.status, "unknown"), "message": problem.detail}
