"""The routes of E2B's dialect, below `/e2b`; signed URLs of files are at `/files`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.service.api import sessions
from atoll.service.dialects.e2b import commands, control, filing, interpreter, snapshots, wire
from atoll.service.dialects.e2b.dialect import PREFIX
from atoll.service.http.route import Route

if TYPE_CHECKING:
    from starlette.requests import Request

    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.http.route import Handler, Refuse, Who

    Row = tuple[str, str, Handler, str]

_S = "/sandboxes/{session}"
CONTROL: tuple[Row, ...] = (
    ("POST", "/v2/sandboxes", control.create, "sessions"),
    ("POST", "/sandboxes", control.create, "sessions"),
    ("GET", "/v2/sandboxes", control.list_all, "sessions"),
    ("GET", "/sandboxes", control.list_all, "sessions"),
    ("POST", "/v2/sandboxes/{session}/connect", control.connect, "sessions"),
    ("POST", f"{_S}/connect", control.connect, "sessions"),
    ("POST", f"{_S}/resume", control.connect, "sessions"),
    ("GET", _S, control.show, "sessions"),
    ("DELETE", _S, sessions.delete, "sessions"),
    ("POST", f"{_S}/timeout", control.set_timeout, "sessions"),
    ("POST", f"{_S}/pause", control.pause, "sessions"),
    ("POST", f"{_S}/fork", control.fork, "sessions"),
    ("GET", f"{_S}/metrics", control.metrics, "sessions"),
    ("POST", f"{_S}/snapshots", snapshots.create, "sessions"),
    ("GET", "/snapshots", snapshots.list_all, "sessions"),
    ("GET", "/templates/aliases/{alias}", control.alias, "sessions"),
    ("DELETE", "/templates/{template}", snapshots.delete, "sessions"),
    ("PUT", f"{_S}/network", control.unsupported, "sessions"),
)
"""Method, path, handler, scope; who asks is known by the header X-API-KEY."""
INTERPRETER: tuple[Row, ...] = (
    ("POST", "/execute", interpreter.execute, "execute"),
    ("GET", "/contexts", interpreter.list_contexts, "execute"),
    ("POST", "/contexts", interpreter.create_context, "execute"),
    ("POST", "/contexts/{context}/restart", interpreter.restart_context, "execute"),
    ("DELETE", "/contexts/{context}", interpreter.remove_context, "execute"),
)
FILES: tuple[Row, ...] = (
    ("GET", "/files", filing.read, "files"),
    ("POST", "/files", filing.write, "files"),
)
_F, _P = "/filesystem.Filesystem", "/process.Process"
CALLS: tuple[Row, ...] = (
    ("POST", f"{_F}/Stat", filing.info, "files"),
    ("POST", f"{_F}/ListDir", filing.list_folder, "files"),
    ("POST", f"{_F}/MakeDir", filing.make_folder, "files"),
    ("POST", f"{_F}/Move", filing.move, "files"),
    ("POST", f"{_F}/Remove", filing.remove, "files"),
    ("POST", f"{_F}/CreateWatcher", filing.create_watcher, "files"),
    ("POST", f"{_F}/GetWatcherEvents", filing.watcher_events, "files"),
    ("POST", f"{_F}/RemoveWatcher", filing.remove_watcher, "files"),
    ("POST", f"{_P}/List", commands.list_all, "execute"),
    ("POST", f"{_P}/SendSignal", commands.send_signal, "execute"),
    ("POST", f"{_P}/SendInput", commands.send_input, "execute"),
    ("POST", f"{_P}/CloseStdin", commands.close_input, "execute"),
    ("POST", f"{_P}/Update", commands.update, "execute"),
)
STREAMS: tuple[Row, ...] = (
    ("POST", f"{_F}/WatchDir", filing.watch, "files"),
    ("POST", f"{_P}/Start", commands.start, "execute"),
    ("POST", f"{_P}/Connect", commands.connect, "execute"),
    ("POST", f"{_P}/StreamInput", commands.stream_input, "execute"),
)
_NEW_WORK = (control.create, control.fork, snapshots.create, interpreter.execute, commands.start)
_KEYED = (control.create, snapshots.create)
_MAKES = (control.create, control.fork, snapshots.create)


def routes() -> list[Route]:
    """Return every route of the dialect."""
    health: Row = ("GET", "/health", interpreter.health, "")
    return [
        *_routes(CONTROL, by_key, wire.refuse),
        *_routes((health, *FILES), by_token, wire.refuse),
        *_routes(INTERPRETER, by_token, interpreter.refuse),
        *_routes(CALLS, by_token, wire.refuse_call),
        *_routes(STREAMS, by_token, wire.refuse_stream),
        *_routes(FILES, by_signature, wire.refuse, prefix=""),
    ]


def by_key(service: Service, request: Request) -> Principal:
    """Return who asks, by API key."""
    return service.e2b.check_key(request)


def by_token(service: Service, request: Request) -> Principal:
    """Return who asks, by the token of a sandbox."""
    return service.e2b.check_token(request)


def by_signature(service: Service, request: Request) -> Principal:
    """Return who asks, by the signature of a URL."""
    return service.e2b.check_signature(request)


def _routes(rows: tuple[Row, ...], who: Who, refuse: Refuse, prefix: str = PREFIX) -> list[Route]:
    return [
        Route(
            method,
            prefix + path,
            handler,
            scope,
            status=201 if handler in _MAKES else 200,
            new_work=handler in _NEW_WORK,
            keyed=handler in _KEYED,
            who=who,
            refuse=refuse,
            security="e2b_" + who.__name__.removeprefix("by_"),
        )
        for method, path, handler, scope in rows
    ]
