"""The routes of LibreChat's dialect, at `/v1` and at `/`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.service.dialects.librechat import executing, filing, programmatic, wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from starlette.requests import Request
    from starlette.responses import Response

    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.http.requests import Call

    Handler = Callable[[Call], Awaitable[Response]]

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
)  # fmt: skip
"""Method, path, handler, scope, and whether it is refused while the service drains."""
HEALTH = "/v1/health"


def facts() -> list[dict[str, Any]]:
    """Return the fields of every route of the dialect."""
    return [
        {
            "method": method, "path": prefix + path, "handler": _with_profile(handler),
            "scope": scope, "new_work": new_work, "who": who, "refuse": wire.refusal,
            "security": "librechat",
        }
        for prefix in ("/v1", "")
        for method, path, handler, scope, new_work in TABLE
    ]  # fmt: skip


def who(service: Service, request: Request) -> Principal:
    """Return who makes a request of the dialect."""
    return service.librechat.credentials.check(request)


def _with_profile(handler: Handler) -> Handler:
    async def handle(call: Call) -> Response:
        expected = wire.profile(call.request)
        response = await handler(call)
        response.headers[wire.PROFILE_HEADER] = expected
        return response

    handle.__doc__, handle.__name__ = handler.__doc__, handler.__name__
    handle.__module__ = handler.__module__
    return handle
