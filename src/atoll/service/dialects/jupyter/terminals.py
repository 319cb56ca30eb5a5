"""Terminals of the Jupyter gateway: shells of a tenant's sessions, as Jupyter's clients use them.

A terminal is a process with a pty (see core/processes), in the session of a kernel or in one of its
own. Its name has the session's id, so it is found under the tenant of the key as any session is.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from starlette.routing import compile_path
from starlette.websockets import WebSocketDisconnect

from atoll.concurrency.background import both_ways
from atoll.errors import AtollError
from atoll.sandbox.process import StartOptions
from atoll.service.core.processes import SHELL, Offsets
from atoll.service.dialects.jupyter.gateway import PREFIX
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, encode, not_found
from atoll.service.http.requests import Json
from atoll.text.amounts import iso_time

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import ApiRequest
    from atoll.types import ProcessInfo

NAME = "{session}.{process}"
PATH = f"{PREFIX}/terminals/websocket/{NAME}"
PATTERN = compile_path(PATH)[0]
OWN = "jupyter-terminal"
"""The client in the metadata of a session that was opened for a terminal, and ends with it."""
MAX_MESSAGE = 1 << 20
PATIENCE_SECONDS = 30.0
"""For how long a message waits whose key makes too many requests."""
_Message = msgspec.json.Decoder(list[str | int | float])


class NewTerminal(Struct, kw_only=True):
    """POST /api/terminals; fields that are not known are passed over."""

    kernel: str | None = None
    """The kernel whose files and network it shares; without one, it has a session of its own."""
    cwd: str | None = None


class TerminalInfo(Struct):
    """A terminal as Jupyter's REST interface shows it."""

    name: str
    last_activity: str


async def start(call: ApiRequest) -> Json[TerminalInfo]:
    """Start a shell in the session of a kernel, or in one of its own."""
    given, service = await call.json(NewTerminal), call.service
    service.quotas.require_cpu(call.principal)
    if given.kernel is not None:
        hosted = service.gateway.get(call.principal, given.kernel).hosted
    else:
        call.principal.require("sessions")
        config, callbacks = await service.configure(call.principal, bodies.NewSession())
        life = bodies.Life(metadata={"client": OWN})
        hosted = await service.sessions.open(call.principal, config, callbacks, life)
    try:
        info = await hosted.processes.start(SHELL, StartOptions(cwd=given.cwd, pty=True))
    except BaseException:
        await _end_own(service, hosted)
        raise
    made = _described(hosted, info)
    return Json(made, 201, {"location": f"{PREFIX}/api/terminals/{made.name}"})


async def list_terminals(call: ApiRequest) -> list[TerminalInfo]:
    """List the tenant's terminals, those of other clients too."""
    hosted = [one for one in call.service.sessions.all() if one.tenant == call.principal.tenant]
    return [
        _described(one, info)
        for one in hosted
        if not one.over
        for info in await one.processes.running()
        if info.pty
    ]


async def show(call: ApiRequest) -> TerminalInfo:
    """Describe a terminal."""
    return _described(call.session, await _terminal(call.session, call.path["process"]))


async def end(call: ApiRequest) -> None:
    """Kill a terminal's shell; a session that was opened for it ends too."""
    hosted = call.session
    await hosted.processes.kill((await _terminal(hosted, call.path["process"])).id)
    await _end_own(call.service, hosted)


async def serve(
    service: Service, websocket: WebSocket, principal: Principal, session: str, process: str
) -> None:
    """Carry what is typed and printed until one side leaves; Problem if there is no such shell."""
    hosted = service.sessions.get(principal, session)
    info = await _terminal(hosted, process)
    with service.quotas.connection(principal), service.streams.open(principal, hosted.id) as stream:
        await websocket.accept()
        await _send(websocket, "setup", {})
        ways = (
            _typed(service, websocket, principal, hosted, info),
            _printed(service, websocket, hosted, info),
        )
        try:
            await both_ways(*ways, until=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if stream.interrupted() is None:
                raise
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client has left
            await _send(websocket, "disconnect", 1)
            await websocket.close()


async def _typed(
    service: Service,
    websocket: WebSocket,
    principal: Principal,
    hosted: HostedSession,
    info: ProcessInfo,
) -> None:
    """Pass on what the client types, and the sizes of its window; end at what is not a message."""
    gone = (WebSocketDisconnect, RuntimeError, ValueError, Problem, AtollError)
    with contextlib.suppress(*gone):
        while True:
            text = await websocket.receive_text()
            if len(text) > MAX_MESSAGE:
                return
            await asyncio.sleep(service.quotas.request(principal, PATIENCE_SECONDS))
            with service.memory.admit(hosted.tenant, 4 * len(text), "a message"):
                match _Message.decode(text):
                    case ["stdin", str(typed)]:
                        await hosted.processes.write(info.id, typed.encode(), end=False)
                    case ["set_size", int(rows), int(columns), *_]:
                        await hosted.processes.resize(info.id, rows, columns)
                    case _:
                        return


async def _printed(
    service: Service, websocket: WebSocket, hosted: HostedSession, info: ProcessInfo
) -> None:
    """Pass on what the shell prints, from the oldest that is kept, until it has ended."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pause = service.settings.keepalive_seconds
    with contextlib.suppress(WebSocketDisconnect, RuntimeError, Problem):
        async for found in hosted.processes.follow(info.id, Offsets(err=None), pause):
            if found is not None and (text := decoder.decode(found.stdout)):
                await _send(websocket, "stdout", text)


async def _send(websocket: WebSocket, kind: str, content: object) -> None:
    await websocket.send_text(encode([kind, content]).decode())


async def _terminal(hosted: HostedSession, process: str) -> ProcessInfo:
    info = await hosted.processes.get(process)
    if not (info.pty and info.running):
        raise not_found("terminal")
    return info


async def _end_own(service: Service, hosted: HostedSession) -> None:
    if hosted.facts.metadata.get("client") == OWN:
        await service.sessions.end(hosted)


def _described(hosted: HostedSession, info: ProcessInfo) -> TerminalInfo:
    name = NAME.format(session=hosted.id, process=info.id)
    return TerminalInfo(name, iso_time(hosted.used))
