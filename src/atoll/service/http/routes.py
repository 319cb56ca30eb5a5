"""The table of routes: path, scope and handler; the OpenAPI document follows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.routing import compile_path

from atoll.service.api import (
    admin,
    agent_runs,
    commits,
    contexts,
    executions,
    files,
    operators,
    overview,
    ports,
    processes,
    sessions,
)
from atoll.service.api.file_operations import OPERATIONS, operate
from atoll.service.console import pages
from atoll.service.dialects.e2b import routes as e2b
from atoll.service.dialects.e2b import wire as e2b_wire
from atoll.service.dialects.e2b.dialect import PREFIX as E2B
from atoll.service.dialects.jupyter import routes as jupyter
from atoll.service.dialects.librechat import executing
from atoll.service.dialects.librechat import routes as librechat
from atoll.service.dialects.sandboxfusion import routes as sandboxfusion
from atoll.service.http import bodies
from atoll.service.http.problems import Problem
from atoll.service.http.requests import Json
from atoll.service.http.route import Route

if TYPE_CHECKING:
    import re

    from atoll.service.http.requests import ApiRequest
    from atoll.service.http.route import Handler, Refuse

PREFIX = "/api/v1"


def _file_handler(name: str) -> Handler:
    """Return the handler of a file operation."""

    async def handler(call: ApiRequest) -> Json[Any]:
        return await operate(call, name)

    handler.__doc__ = OPERATIONS[name].summary
    return handler


def _starts(path: str, handler: Handler, scope: str, body: Any) -> Route:
    """Return the route of a handler that starts an execution."""
    return Route(
        "POST", path, handler, scope, body, new_work=True, keyed=True, detaches=True, basic=True
    )


def _makes(path: str, handler: Handler, scope: str, body: Any) -> Route:
    """Return the route of an object that is created once, if the request has an idempotency key."""
    return Route("POST", path, handler, scope, body, 201, new_work=True, keyed=True)


_S = "/sessions/{session}"
_ANY = "/admin/sessions/{session}"
_PORT = f"{_S}/ports/{{port}}"
_PROCESS = f"{_S}/processes/{{process}}"
_NATIVE = (
    _starts("/run", executions.run, "execute", bodies.Run),
    _starts(f"{_S}/executions", executions.execute, "execute", bodies.Cell),
    _starts(f"{_S}/shell", executions.shell, "execute", bodies.Command),
    Route("GET", f"{_S}/executions", sessions.history, "sessions", query="after limit"),
    Route("GET", f"{_S}/tree", sessions.tree, "sessions"),
    Route("GET", "/executions/{execution}", executions.show, "execute"),
    Route("GET", "/executions/{execution}/events", executions.events, "execute", query="after"),
    Route("POST", "/executions/{execution}/cancel", executions.cancel, "execute", status=202),
    Route(
        "POST",
        "/executions/{execution}/tool_results",
        executions.tool_results,
        "execute",
        list[bodies.ToolResult],
    ),
    Route("GET", "/executions/{execution}/displays/{number}", executions.display, "execute"),
    _makes("/sessions", sessions.create, "sessions", bodies.NewSession),
    Route("GET", "/sessions", sessions.list_all, "sessions", query="limit cursor state"),
    Route("GET", _S, sessions.show, "sessions"),
    Route("PATCH", _S, sessions.change, "sessions", bodies.Life),
    Route("DELETE", _S, sessions.delete, "sessions"),
    Route("POST", f"{_S}/restart", sessions.restart, "sessions", bodies.Restart, new_work=True),
    Route("POST", f"{_S}/cancel", sessions.cancel, "execute", status=202),
    Route("POST", f"{_S}/pause", sessions.pause, "sessions"),
    Route("POST", f"{_S}/resume", sessions.resume, "sessions"),
    _makes(f"{_S}/fork", sessions.fork, "sessions", bodies.Fork),
    _makes(f"{_S}/checkpoints", sessions.checkpoint, "sessions", bodies.Mark),
    Route("GET", f"{_S}/checkpoints", sessions.checkpoints, "sessions"),
    Route("POST", f"{_S}/rollback", sessions.rollback, "sessions", bodies.Rollback),
    Route("POST", f"{_S}/validate", sessions.validate, "execute", bodies.Code),
    Route("GET", f"{_S}/variables", sessions.list_variables, "sessions", query="hidden"),
    Route(
        "GET", f"{_S}/variables/{{name}}", sessions.get_variable, "sessions", query="exists plain"
    ),
    Route("PUT", f"{_S}/variables/{{name}}", sessions.set_variable, "sessions", bodies.Value),
    Route("PUT", f"{_S}/tools", sessions.set_tools, "sessions", bodies.NewTools),
    Route("POST", f"{_S}/save", sessions.save, "sessions", status=201, keyed=True),
    _makes(f"{_S}/commit", commits.commit, "sessions", bodies.Commit),
    Route("POST", "/states", sessions.upload_state, "sessions", bytes, 201),
    Route("GET", "/states/{state}", sessions.show_state, "sessions"),
    Route("DELETE", "/states/{state}", sessions.delete_state, "sessions"),
    Route(
        "POST",
        f"{_S}/processes",
        processes.start,
        "execute",
        processes.NewProcess,
        201,
        new_work=True,
    ),
    Route("GET", f"{_S}/processes", processes.list_processes, "execute"),
    Route("GET", _PROCESS, processes.show, "execute"),
    Route("GET", f"{_PROCESS}/events", processes.events, "execute", query="out err"),
    Route("GET", f"{_PROCESS}/output", processes.output, "execute", query="out err wait"),
    Route("POST", f"{_PROCESS}/resize", processes.resize, "execute", processes.TerminalSize),
    Route("POST", f"{_PROCESS}/input", processes.write, "execute", bytes, query="end"),
    Route("POST", f"{_PROCESS}/signal", processes.send_signal, "execute", processes.Signal),
    Route("GET", f"{_S}/ports", ports.list_ports, "sessions"),
    Route("POST", f"{_PORT}/expose", ports.expose, "sessions", ports.NewPreview),
    Route("DELETE", f"{_PORT}/expose", ports.withdraw, "sessions"),
    Route("GET", f"{_S}/files/watch", processes.watch, "files", query="path recursive"),
    Route("GET", f"{_S}/files", files.list_folder, "files", query="path"),
    Route("GET", f"{_S}/files/content", files.download, "files", query="path!"),
    Route("HEAD", f"{_S}/files/content", files.download, "files", query="path!"),
    Route("PUT", f"{_S}/files/content", files.upload, "files", bytes, query="path!"),
    Route("DELETE", f"{_S}/files/content", files.delete, "files", query="path! recursive"),
    *(
        Route(
            "POST",
            f"{_S}/files/{name}",
            _file_handler(name),
            "files",
            operation.body,
            query="raw",
            answer=operation.answer,
        )
        for name, operation in OPERATIONS.items()
    ),
    Route("POST", "/contexts", sessions.upload_context, "files", bytes, 201, query="name"),
    Route("GET", "/contexts", contexts.list_contexts, "files"),
    Route("GET", "/contexts/{context}", sessions.show_context, "files"),
    Route("GET", "/contexts/{context}/text", contexts.text, "files", query="start end"),
    Route("GET", "/contexts/{context}/sections", contexts.sections, "files"),
    Route("GET", "/contexts/{context}/coverage", contexts.coverage, "files", query="run"),
    Route("POST", "/contexts/{context}/search", contexts.search, "files", contexts.Search),
    Route("DELETE", "/contexts/{context}", sessions.delete_context, "files"),
    _makes("/runs", agent_runs.start, "runs", agent_runs.NewRun),
    Route("POST", "/runs/upload", agent_runs.upload, "sessions", bytes, 201),
    Route("GET", "/runs", agent_runs.list_runs, "sessions", query="limit cursor"),
    Route("GET", "/runs/{run}", agent_runs.show, "sessions"),
    Route("DELETE", "/runs/{run}", agent_runs.delete, "sessions"),
    Route("GET", "/runs/{run}/tree", agent_runs.tree, "sessions"),
    Route("GET", "/runs/{run}/events", agent_runs.events, "sessions", query="after"),
    Route("GET", "/runs/{run}/trajectory.jsonl", agent_runs.trajectory, "sessions"),
    Route("POST", "/runs/{run}/cancel", agent_runs.cancel, "sessions", status=202),
    Route("GET", "/whoami", overview.whoami, ""),
    Route("GET", "/stats", overview.stats, "metrics"),
    Route("GET", "/overview/events", overview.watch, "sessions"),
    Route("GET", "/usage", overview.usage, "", query="from to"),
    Route("POST", "/drain", overview.drain, "admin", status=202),
    Route("DELETE", "/drain", overview.undrain, "admin"),
    Route("POST", "/keys", admin.add_key, "admin", bodies.NewKey, 201),
    Route("GET", "/keys", admin.list_keys, "admin"),
    Route("PATCH", "/keys/{key}", admin.change_key, "admin", bodies.ChangedKey),
    Route("DELETE", "/keys/{key}", admin.revoke_key, "admin"),
    Route(
        "GET",
        "/admin/sessions",
        operators.list_sessions,
        "admin",
        query="tenant state limit offset",
    ),
    Route("GET", _ANY, operators.show_session, "admin"),
    Route("DELETE", _ANY, operators.end_session, "admin"),
    Route("POST", f"{_ANY}/pause", operators.pause_session, "admin"),
    Route("GET", "/audit", operators.audit, "admin", query="search limit before"),
)
_OPERATIONAL = (
    Route("GET", "/health", admin.health, None),
    Route("GET", "/ready", admin.ready, None),
    Route("GET", librechat.HEALTH, executing.health, None),
    Route("GET", "/health/detailed", admin.detailed, ""),
    Route("GET", "/metrics", admin.show_metrics, "metrics"),
)


def table() -> list[tuple[re.Pattern[str], Route]]:
    """Return every route, and those of the console, with the pattern of its whole path."""
    return [(compile_path(route.path)[0], route) for route in (*all_routes(), *pages.ROUTES)]


def all_routes() -> list[Route]:
    """Return every route of the APIs, with its whole path."""
    native = [replace(route, path=PREFIX + route.path) for route in _NATIVE]
    dialects = (librechat, e2b, jupyter, sandboxfusion)
    return [*native, *_OPERATIONAL, *(route for dialect in dialects for route in dialect.routes())]


def refusal(path: str, route: Route | None) -> Refuse:
    """Return what writes an error; a path of E2B's without a route has the form of its routes."""
    if route is not None:
        return route.refuse or Problem.response
    return e2b_wire.refuse if path.startswith(f"{E2B}/") else Problem.response
