"""The routes of LibreChat's dialect, at `/v1` and at `/`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from starlette.responses import Response

from atoll.service.dialects.librechat import executing, filing, programmatic, wire
from atoll.service.http.requests import Json
from atoll.service.http.route import Route

if TYPE_CHECKING:
    from starlette.requests import Request

    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.http.requests import ApiRequest
    from atoll.service.http.route import Handler

_FILE = "/sessions/{storage}/objects/{file}"
TABLE: tuple[tuple[str, str, Handler, str, bool], ...] = (
    ("POST", "/exec", executing.execute, "execute", True),
    ("POST", "/exec/programmatic", programmatic.programmatic, "execute", False),
    ("POST", "/exec/programmatic/cancel", programmatic.cancel, "execute", False),
    ("POST", "/upload", filing.upload, "files", True),
    ("POST", "/upload/batch", filing.upload_batch, "files", True),
    ("GET", "/files/{storage}", filing.list_files, "files", False),
    ("GET", _FILE, filing.describe, "files", False),
    ("DELETE", _FILE, filing.delete, "files", False),
    ("GET", "/download/{storage}/{file}", filing.download, "files", False),
    ("DELETE", "/files/{storage}/{file}", filing.delete, "files", False),
)
"""Method, path, handler, scope, and whether it is refused while the service drains."""
HEALTH = "/v1/health"


def routes() -> list[Route]:
    """Return every route of the dialect."""
    return [
        Route(
            method,
            prefix + path,
            _with_profile(handler),
            scope,
            new_work=new_work,
            who=who,
            refuse=wire.refusal,
            security="librechat",
        )
        for prefix in ("/v1", "")
        for method, path, handler, scope, new_work in TABLE
    ]


def who(service: Service, request: Request) -> Principal:
    """Return who makes a request of the dialect."""
    return service.librechat.credentials.check(request)


def _with_profile(handler: Handler) -> Handler:
    """Return a handler whose answer names the profile that the client expects."""

    @functools.wraps(handler)
    async def handle(call: ApiRequest) -> Response:
        expected = wire.profile(call.request)
        answer = await handler(call)
        response = answer if isinstance(answer, Response) else Json(answer)
        response.headers[wire.PROFILE_HEADER] = expected
        return response

    return handle
