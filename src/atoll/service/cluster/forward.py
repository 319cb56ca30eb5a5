"""Requests that another service has to answer, passed on to it; its answers, as they come."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.extras import hint
from atoll.service.http.problems import Problem
from atoll.service.http.requests import PieceResponse
from atoll.service.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

    from atoll.service.telemetry.tracing import Traces

_LOG = logging.getLogger("atoll.service")
CONNECT_SECONDS = 3.0
PASSED_ON = "x-atoll-passed-on"
_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host", "content-length"}
_ID = "x-request-id"
_PARENT = "traceparent"
_NAMED = {*_HOP, _ID, _PARENT}


class UnreachableError(Problem):
    """Nothing answers at another service's address: nothing was sent to it."""

    def __init__(self) -> None:
        text = "the service that has the session cannot be reached"
        super().__init__(503, "unavailable", text, retry_after=2)


class Forwarder:
    """Sends requests to the other services."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces
        try:
            import httpx2  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError(f"several services need the extra `redis`. {hint('redis')}") from None
        limits = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        self._client = httpx2.AsyncClient(timeout=limits, trust_env=False)
        self._unreachable = (httpx2.ConnectError, httpx2.ConnectTimeout)
        self._http_error: type[Exception] = httpx2.HTTPError

    async def pass_on(self, request: Request, url: str) -> Response:
        """Return another service's answer to this request; 503 if it has none."""
        if PASSED_ON in request.headers:
            raise Problem(503, "routing", "the services do not agree where it is", retry_after=1)
        headers = [(k, v) for k, v in request.headers.items() if k not in _NAMED]
        headers.append((_ID, logs.request_id()))  # so that both services log the same id
        if parent := self._traces.parent(request.headers.get(_PARENT, "")):
            headers.append((_PARENT, parent))
        # As it came: of the decoded path, a `?` in a name would become the start of the query.
        path = request.scope["raw_path"].decode("latin-1")
        query = request.scope["query_string"].decode("latin-1")
        whole = f"{url}{path}{'?' if query else ''}{query}"
        headers.append((PASSED_ON, "1"))
        asked = self._client.build_request(
            request.method, whole, headers=headers, content=_body(request)
        )
        try:
            return PassedOn(await self._client.send(asked, stream=True))
        except self._unreachable as exc:
            _LOG.warning("%s cannot be reached: %s", url, exc)
            raise UnreachableError from None
        except self._http_error as exc:
            _LOG.warning("%s did not answer: %s", url, exc)
            text = "the service that has the session ended before it answered"
            raise Problem(503, "unavailable", text, retry_after=2) from None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


async def _body(request: Request) -> AsyncIterator[bytes]:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "disconnected", "the body ended before it was whole")
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


class PassedOn(PieceResponse):
    """An answer of another service, handed on as it comes."""

    def __init__(self, answer: Any) -> None:
        super().__init__(None, answer.status_code)
        self._answer = answer
        named = {name.encode() for name in _NAMED}
        self.raw_headers = [(k, v) for k, v in answer.headers.raw if k.lower() not in named]

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the other service's body."""
        body: AsyncIterator[bytes] = self._answer.aiter_raw()
        return body

    async def close(self) -> None:
        """End the request to the other service, if it has not ended."""
        await self._answer.aclose()
