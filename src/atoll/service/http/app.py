"""The ASGI application: lets a request in or refuses it, and answers every one with a known shape.

SECURITY: the order is fixed: Host, route, Origin, key, scope, rate, body. Nothing is read of a
body, and no sandbox is touched, before a key was found valid. Ids are looked up under the
key's tenant.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import time
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketState

from atoll.service.access.keys import Principal
from atoll.service.api import ports
from atoll.service.dialects.jupyter import routes as jupyter
from atoll.service.dialects.jupyter import socket as kernel_socket
from atoll.service.http import openapi, routes
from atoll.service.http.problems import Problem, encode, of_error
from atoll.service.http.proxies import PROTO, Proxies
from atoll.service.http.requests import ApiRequest, Json
from atoll.service.http.route import Route
from atoll.service.ids import new_id
from atoll.service.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import Message, Receive, Scope, Send

    from atoll.service.core.service import Service
    from atoll.service.telemetry.tracing import Answered

_LOG = logging.getLogger("atoll.service")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
_ANY = ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")
_NOBODY = Principal(key="", tenant="")
_SAFE = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
_CLOSE = (b"connection", b"close")
PIECE = 256 << 10
"""Bytes handed to a connection at a time: it keeps those that the client does not take at once."""


class App:
    """Serves the routes for one Service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._routes = routes.table()
        self._openapi: bytes | None = None
        settings = service.settings
        self._proxies = Proxies(settings.trusted_proxies)
        self._trusts_proxies = bool(settings.trusted_proxies)
        self._hosts = {*_LOOPBACK, settings.host.lower(), *map(str.lower, settings.hosts)}
        self._any_host = "*" in settings.hosts or (settings.host in _ANY and not settings.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            return
        if self._trusts_proxies or PROTO in dict(scope["headers"]):
            self._proxies.apply(scope)
        if kind == "websocket":
            await self._serve_socket(WebSocket(scope, receive, send))
            return
        request, traces = Request(scope, receive), self._service.traces
        if not traces.enabled:
            await self._serve(request, send, None)
            return
        with traces.request(request) as answered:
            await self._serve(request, send, answered)

    async def _serve(self, request: Request, send: Send, answered: Answered | None) -> None:
        headers, service = request.headers, self._service
        given, parent = headers.get("x-request-id", ""), headers.get("traceparent", "")
        request_id = given if _REQUEST_ID.match(given) else new_id("req")
        if service.traces.enabled:
            parent = service.traces.parent(parent)
        logs.REQUEST.set((request_id, parent))
        begun, code, route, status = time.perf_counter(), "", None, 0
        two_lengths = "content-length" in headers and "transfer-encoding" in headers

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(b"x-request-id", request_id.encode()), *_SAFE]
                own += [_CLOSE] if two_lengths else []
                message["headers"] = [*message.get("headers", ()), *own]
            if len(message.get("body", b"")) <= PIECE:
                await send(message)
                return
            for part in _parts(message):
                await send(part)

        with contextlib.ExitStack() as held:
            try:
                route, path = self._find(request, two_lengths=two_lengths)
                response = await self._answer(request, route, path, held)
            except Exception as exc:  # noqa: BLE001 - the edge: every fault becomes an answer
                problem = of_error(exc)
                if problem.status in (500, 507) and not isinstance(exc, Problem):
                    _LOG.error("%s %s failed", request.method, request_id, exc_info=exc)
                code = problem.code
                service.metrics.refused_credential(problem)
                refuse = routes.refusal(request.scope["path"], route)
                response = refuse(problem, request_id)
            await response(request.scope, request.receive, send_noting)
        name = route.path if route is not None else "(none)"
        seconds = time.perf_counter() - begun
        if answered is not None:
            answered(name, status, code)
        service.metrics.answered(name, request.method, status, seconds, code)
        if logs.LOG.isEnabledFor(logging.INFO):
            logs.answered(request.method, name, status, seconds, code)

    async def _serve_socket(self, websocket: WebSocket) -> None:
        """Serve a websocket, or refuse it with the status that a request would get."""
        status, code, port = 101, "", ports.is_connection(websocket.scope["path"])
        logs.REQUEST.set((new_id("req"), websocket.headers.get("traceparent", "")))
        try:
            self._check_host(websocket.headers.get("host", ""))
            await (ports.connect if port else kernel_socket.serve)(self._service, websocket)
        except Exception as exc:  # noqa: BLE001 - the edge: every fault becomes an answer
            problem = of_error(exc)
            if problem.status == 500:
                _LOG.error("a websocket failed", exc_info=exc)
            status, code = problem.status, problem.code
            self._service.metrics.refused_credential(problem)
            if websocket.application_state is WebSocketState.CONNECTING:
                refuse = Problem.response if port else jupyter.refuse
                await websocket.send_denial_response(refuse(problem, ""))
        path = ports.CONNECT if port else kernel_socket.PATH
        self._service.metrics.answered(path, "GET", status, 0, code)

    async def _answer(
        self, request: Request, route: Route, path: dict[str, str], held: contextlib.ExitStack
    ) -> Response:
        service, principal = self._service, _NOBODY
        if "cookie" in request.headers or "origin" in request.headers:
            principal = self._signed_in(request, route) or _NOBODY
        if route.scope is not None:
            if principal is _NOBODY:
                principal = await self._owner(request, route)
            if route.scope and route.scope not in principal.scopes:
                principal.require(route.scope)
            wait = service.quotas.request(principal, route.patience)
            held.enter_context(service.quotas.connection(principal))
            await _pause(wait)
            service.act_for(principal)
            if service.forwarder is not None:
                passed = await self._elsewhere(request, principal, path)
                if passed is not None:
                    return passed  # the service that answers it counts it
            if service.replicas is not None:
                await service.replicas.request(principal)
        if route.new_work and service.draining:
            service.require_accepting()
        holding = service.memory.admit(principal, 0, "the request")
        held.callback(holding.release)
        answer = await route.handler(ApiRequest(service, request, principal, holding, path))
        if not isinstance(answer, Response):
            answer = Response(None, 204) if answer is None else Json(answer, route.status)
        holding.grow(len(answer.body) if hasattr(answer, "body") else 0)
        return answer

    async def _elsewhere(
        self, request: Request, principal: Principal, path: dict[str, str]
    ) -> Response | None:
        """Return the answer of the service that has the session; None if there is no other."""
        service, replicas = self._service, self._service.replicas
        here = (service.sessions, service.executions, service.gateway)
        for name in ("session", "execution", "kernel"):
            ident = path.get(name)
            if ident is None or any(ident in known for known in here):
                continue
            if replicas is not None and service.forwarder is not None:
                url = await replicas.find(ident)
                if url is not None:
                    return await service.forwarder.pass_on(request, url)
            if service.fleet is not None:
                return await service.fleet.forward_or_adopt(service, request, principal, ident)
        return None

    async def _owner(self, request: Request, route: Route) -> Principal:
        """Return whose key a request has; another service of a fleet may have made it just now."""
        service, fleet = self._service, self._service.fleet
        if route.who is not None:
            owner = functools.partial(route.who, service, request)
        else:
            owner = functools.partial(service.keys.check, request.headers, basic=route.basic)
        try:
            return owner()
        except Problem as exc:
            if fleet is None or exc.reason != "unknown":
                raise
            if not await fleet.keys.look_for(service.database):
                raise
        return owner()

    def _signed_in(self, request: Request, route: Route) -> Principal | None:
        """Return who a page of ours acts for; refuse every other page's request."""
        principal = None
        if "cookie" in request.headers and route.who is None:
            principal = self._service.signins.principal(request)
        if principal is None and "origin" in request.headers and not route.page:
            text = "requests of web pages are not served, except of this service's own"
            raise Problem(403, "origin", text)
        return principal

    def _find(self, request: Request, *, two_lengths: bool) -> tuple[Route, dict[str, str]]:
        if (host := request.headers.get("host", "")) not in self._hosts:
            self._check_host(host)
        if two_lengths:  # a proxy may see another end of the body than this service
            text = "send Content-Length or Transfer-Encoding, not both"
            raise Problem(400, "framing", text)
        path, allowed = request.scope["path"], []
        if path == "/openapi.json":
            return Route("GET", path, self._document, None), {}
        for pattern, route in self._routes:
            if match := pattern.match(path):
                if route.method == request.method:
                    return route, match.groupdict()
                allowed.append(route.method)
        if allowed:
            known = sorted(allowed)
            text = f"{request.method[:20]} is not served here: use {', '.join(known)}"
            raise Problem(405, "method", text, allow=known)
        text = "there is no such route: /openapi.json lists them, with their bodies"
        raise Problem(404, "not_found", text)

    def _check_host(self, host: str) -> None:
        """Refuse a name that is not ours: a web page may have pointed its own name at us."""
        name = host.lower()
        name = name.rpartition(":")[0] if re.search(r":\d+\Z", name) else name
        if not self._any_host and name not in self._hosts:
            text = f"the Host {host[:100]!r} is not served: start with --allow-host {name[:100]}"
            raise Problem(421, "host", text)

    async def _document(self, _call: ApiRequest) -> Response:
        if self._openapi is None:
            self._openapi = encode(openapi.document())
        return Response(self._openapi, media_type="application/json")


async def _pause(seconds: float) -> None:
    """Sleep, if there is any time to sleep for."""
    if seconds:
        await asyncio.sleep(seconds)


def _parts(message: Message) -> Iterator[Message]:
    """Yield a large message of an answer in parts that a connection can wait between."""
    body = message["body"]
    for at in range(0, len(body), PIECE):
        more = at + PIECE < len(body) or message.get("more_body", False)
        yield {**message, "body": bytes(body[at : at + PIECE]), "more_body": more}
