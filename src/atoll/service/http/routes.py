"""The table of routes: what is served where, for which scope; the OpenAPI document follows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.routing import compile_path

from atoll.service.api import (
    admin,
    agent_runs,
    contexts,
    executions,
    files,
    overview,
    processes,
    sessions,
)
from atoll.service.api.file_operations import OPERATIONS, operate
from atoll.service.dialects.e2b import routes as e2b
from atoll.service.dialects.jupyter import routes as jupyter
from atoll.service.dialects.librechat import executing
from atoll.service.dialects.librechat import routes as librechat
from atoll.service.http import bodies

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.http.problems import Problem
    from atoll.service.http.requests import Call

Handler = Callable[["Call"], Awaitable["Response"]]
PREFIX = "/api/v1"


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. Without a scope it is open to everybody."""

    method: str
    path: str
    handler: Handler
    scope: str | None
    body: Any = None
    """The shape of a JSON body, or bytes; None if there is none."""
    status: int = 200
    new_work: bool = False
    """Whether it is refused while the service drains."""
    who: Callable[[Service, Request], Principal] | None = None
    """Finds out who asks, where that is not by an API key."""
    refuse: Callable[[Problem, str], Response] | None = None
    """Writes an error, where its shape is not the native one."""
    security: str = "key"
    """The name of the way to say who asks, in the OpenAPI document."""
    detaches: bool = False
    """Whether it can be answered with 202, while what was asked for goes on."""
    query: str = ""
    """Names of parameters of the query; one that is required ends with `!`."""
    answer: Any = None
    """The shape of a JSON answer, where the OpenAPI document says it."""


def _file_handler(name: str) -> Handler:
    """Return the handler of a file operation."""

    async def handler(call: Call) -> Response:
        return await operate(call, name)

    handler.__doc__ = OPERATIONS[name].summary
    return handler


_S = "/sessions/{session}"
_NATIVE = (
    Route("POST", "/run", executions.run, "execute", bodies.Run, new_work=True, detaches=True),
    Route("POST", f"{_S}/executions", executions.execute, "execute", bodies.Cell, new_work=True,
          detaches=True),
    Route("POST", f"{_S}/shell", executions.shell, "execute", bodies.Command, new_work=True,
          detaches=True),
    Route("GET", f"{_S}/executions", sessions.history, "sessions", query="after limit"),
    Route("GET", f"{_S}/tree", sessions.tree, "sessions"),
    Route("GET", "/executions/{execution}", executions.show, "execute"),
    Route("GET", "/executions/{execution}/events", executions.events, "execute", query="after"),
    Route("POST", "/executions/{execution}/cancel", executions.cancel, "execute", status=202),
    Route("POST", "/executions/{execution}/tool_results", executions.tool_results, "execute",
          list[bodies.ToolResult], 204),
    Route("GET", "/executions/{execution}/displays/{number}", executions.display, "execute"),
    Route("POST", "/sessions", sessions.create, "sessions", bodies.NewSession, 201, True),
    Route("GET", "/sessions", sessions.list_all, "sessions", query="limit cursor state"),
    Route("GET", _S, sessions.show, "sessions"),
    Route("PATCH", _S, sessions.change, "sessions", bodies.Life),
    Route("DELETE", _S, sessions.delete, "sessions", status=204),
    Route("POST", f"{_S}/restart", sessions.restart, "sessions", bodies.Restart, new_work=True),
    Route("POST", f"{_S}/cancel", sessions.cancel, "execute", status=202),
    Route("POST", f"{_S}/pause", sessions.pause, "sessions"),
    Route("POST", f"{_S}/resume", sessions.resume, "sessions"),
    Route("POST", f"{_S}/fork", sessions.fork, "sessions", bodies.Fork, 201, True),
    Route("POST", f"{_S}/checkpoints", sessions.checkpoint, "sessions", bodies.Mark, 201, True),
    Route("GET", f"{_S}/checkpoints", sessions.checkpoints, "sessions"),
    Route("POST", f"{_S}/rollback", sessions.rollback, "sessions", bodies.Rollback, 204),
    Route("POST", f"{_S}/validate", sessions.validate, "execute", bodies.Code),
    Route("GET", f"{_S}/variables", sessions.list_variables, "sessions", query="hidden"),
    Route("GET", f"{_S}/variables/{{name}}", sessions.get_variable, "sessions",
          query="exists plain"),
    Route("PUT", f"{_S}/variables/{{name}}", sessions.set_variable, "sessions", bodies.Value, 204),
    Route("PUT", f"{_S}/tools", sessions.set_tools, "sessions", bodies.NewTools, 204),
    Route("POST", f"{_S}/save", sessions.save, "sessions", status=201),
    Route("POST", "/states", sessions.upload_state, "sessions", bytes, 201),
    Route("GET", "/states/{state}", sessions.show_state, "sessions"),
    Route("DELETE", "/states/{state}", sessions.delete_state, "sessions", status=204),
    Route("POST", f"{_S}/processes", processes.start, "execute", processes.NewProcess, 201, True),
    Route("GET", f"{_S}/processes", processes.list_processes, "execute"),
    Route("GET", f"{_S}/processes/{{process}}", processes.show, "execute"),
    Route("GET", f"{_S}/processes/{{process}}/events", processes.events, "execute",
          query="out err"),
    Route("POST", f"{_S}/processes/{{process}}/input", processes.write, "execute", bytes, 204,
          query="end"),
    Route("POST", f"{_S}/processes/{{process}}/signal", processes.send_signal, "execute",
          processes.Signal, 204),
    Route("GET", f"{_S}/files/watch", processes.watch, "files", query="path recursive"),
    Route("GET", f"{_S}/files", files.list_folder, "files", query="path"),
    Route("GET", f"{_S}/files/content", files.download, "files", query="path!"),
    Route("HEAD", f"{_S}/files/content", files.download, "files", query="path!"),
    Route("PUT", f"{_S}/files/content", files.upload, "files", bytes, 204, query="path!"),
    Route("DELETE", f"{_S}/files/content", files.delete, "files", status=204,
          query="path! recursive"),
    *(
        Route("POST", f"{_S}/files/{name}", _file_handler(name), "files", one.body, query="raw",
              answer=one.answer)
        for name, one in OPERATIONS.items()
    ),
    Route("POST", "/contexts", sessions.upload_context, "files", bytes, 201, query="name"),
    Route("GET", "/contexts", contexts.list_contexts, "files"),
    Route("GET", "/contexts/{context}", sessions.show_context, "files"),
    Route("GET", "/contexts/{context}/text", contexts.text, "files", query="start end"),
    Route("GET", "/contexts/{context}/sections", contexts.sections, "files"),
    Route("GET", "/contexts/{context}/coverage", contexts.coverage, "files", query="run"),
    Route("POST", "/contexts/{context}/search", contexts.search, "files", contexts.Search),
    Route("DELETE", "/contexts/{context}", sessions.delete_context, "files", status=204),
    Route("POST", "/runs", agent_runs.start, "runs", agent_runs.NewRun, 201, True),
    Route("POST", "/runs/upload", agent_runs.upload, "sessions", bytes, 201),
    Route("GET", "/runs", agent_runs.list_runs, "sessions", query="limit cursor"),
    Route("GET", "/runs/{run}", agent_runs.show, "sessions"),
    Route("DELETE", "/runs/{run}", agent_runs.delete, "sessions", status=204),
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
    Route("DELETE", "/keys/{key}", admin.revoke_key, "admin", status=204),
)  # fmt: skip
_OPERATIONAL = (
    Route("GET", "/health", admin.health, None),
    Route("GET", "/ready", admin.ready, None),
    Route("GET", librechat.HEALTH, executing.health, None),
    Route("GET", "/health/detailed", admin.detailed, ""),
    Route("GET", "/metrics", admin.show_metrics, "metrics"),
)


def table(pages: Sequence[Route] = ()) -> list[tuple[re.Pattern[str], Route]]:
    """Return every route, and those of `pages`, with the pattern of its whole path."""
    return [(compile_path(one.path)[0], one) for one in (*all_routes(), *pages)]


def all_routes() -> list[Route]:
    """Return every route, with its whole path."""
    native = [replace(one, path=PREFIX + one.path) for one in _NATIVE]
    dialects = [Route(**one) for one in (*librechat.facts(), *e2b.facts(), *jupyter.facts())]
    return [*native, *_OPERATIONAL, *dialects]
