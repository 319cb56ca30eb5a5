"""The table of routes: what is served where, for which scope; the OpenAPI document follows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.routing import compile_path

from atoll.service import (
    agents,
    beside,
    filing,
    handlers,
    operating,
    overview,
    reading,
    running,
    shapes,
)
from atoll.service.e2b import routes as e2b
from atoll.service.file_operations import OPERATIONS, operate
from atoll.service.jupyter import routes as jupyter
from atoll.service.librechat import executing
from atoll.service.librechat import routes as librechat

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from atoll.service.calls import Call
    from atoll.service.keys import Principal
    from atoll.service.problems import Problem
    from atoll.service.service import Service

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
    Route("POST", "/run", running.run, "execute", shapes.Run, new_work=True, detaches=True),
    Route("POST", f"{_S}/executions", running.execute, "execute", shapes.Cell, new_work=True,
          detaches=True),
    Route("POST", f"{_S}/shell", running.shell, "execute", shapes.Command, new_work=True,
          detaches=True),
    Route("GET", f"{_S}/executions", handlers.history, "sessions", query="after limit"),
    Route("GET", f"{_S}/tree", handlers.tree, "sessions"),
    Route("GET", "/executions/{execution}", running.show, "execute"),
    Route("GET", "/executions/{execution}/events", running.events, "execute", query="after"),
    Route("POST", "/executions/{execution}/cancel", running.cancel, "execute", status=202),
    Route("POST", "/executions/{execution}/tool_results", running.tool_results, "execute",
          list[shapes.ToolResult], 204),
    Route("GET", "/executions/{execution}/displays/{number}", running.display, "execute"),
    Route("POST", "/sessions", handlers.create, "sessions", shapes.NewSession, 201, True),
    Route("GET", "/sessions", handlers.list_all, "sessions", query="limit cursor state"),
    Route("GET", _S, handlers.show, "sessions"),
    Route("PATCH", _S, handlers.change, "sessions", shapes.Life),
    Route("DELETE", _S, handlers.delete, "sessions", status=204),
    Route("POST", f"{_S}/restart", handlers.restart, "sessions", shapes.Restart, new_work=True),
    Route("POST", f"{_S}/cancel", handlers.cancel, "execute", status=202),
    Route("POST", f"{_S}/pause", handlers.pause, "sessions"),
    Route("POST", f"{_S}/resume", handlers.resume, "sessions"),
    Route("POST", f"{_S}/fork", handlers.fork, "sessions", shapes.Fork, 201, True),
    Route("POST", f"{_S}/checkpoints", handlers.checkpoint, "sessions", shapes.Mark, 201, True),
    Route("GET", f"{_S}/checkpoints", handlers.checkpoints, "sessions"),
    Route("POST", f"{_S}/rollback", handlers.rollback, "sessions", shapes.Rollback, 204),
    Route("POST", f"{_S}/validate", handlers.validate, "execute", shapes.Code),
    Route("GET", f"{_S}/variables", handlers.list_variables, "sessions", query="hidden"),
    Route("GET", f"{_S}/variables/{{name}}", handlers.get_variable, "sessions",
          query="exists plain"),
    Route("PUT", f"{_S}/variables/{{name}}", handlers.set_variable, "sessions", shapes.Value, 204),
    Route("PUT", f"{_S}/tools", handlers.set_tools, "sessions", shapes.NewTools, 204),
    Route("POST", f"{_S}/save", handlers.save, "sessions", status=201),
    Route("POST", "/states", handlers.upload_state, "sessions", bytes, 201),
    Route("GET", "/states/{state}", handlers.show_state, "sessions"),
    Route("DELETE", "/states/{state}", handlers.delete_state, "sessions", status=204),
    Route("POST", f"{_S}/processes", beside.start, "execute", beside.NewProcess, 201, True),
    Route("GET", f"{_S}/processes", beside.list_processes, "execute"),
    Route("GET", f"{_S}/processes/{{process}}", beside.show, "execute"),
    Route("GET", f"{_S}/processes/{{process}}/events", beside.events, "execute", query="out err"),
    Route("POST", f"{_S}/processes/{{process}}/input", beside.write, "execute", bytes, 204,
          query="end"),
    Route("POST", f"{_S}/processes/{{process}}/signal", beside.send_signal, "execute",
          beside.Signal, 204),
    Route("GET", f"{_S}/files/watch", beside.watch, "files", query="path recursive"),
    Route("GET", f"{_S}/files", filing.list_folder, "files", query="path"),
    Route("GET", f"{_S}/files/content", filing.download, "files", query="path!"),
    Route("HEAD", f"{_S}/files/content", filing.download, "files", query="path!"),
    Route("PUT", f"{_S}/files/content", filing.upload, "files", bytes, 204, query="path!"),
    Route("DELETE", f"{_S}/files/content", filing.delete, "files", status=204,
          query="path! recursive"),
    *(
        Route("POST", f"{_S}/files/{name}", _file_handler(name), "files", one.body, query="raw",
              answer=one.answer)
        for name, one in OPERATIONS.items()
    ),
    Route("POST", "/contexts", handlers.upload_context, "files", bytes, 201, query="name"),
    Route("GET", "/contexts", reading.list_contexts, "files"),
    Route("GET", "/contexts/{context}", handlers.show_context, "files"),
    Route("GET", "/contexts/{context}/text", reading.text, "files", query="start end"),
    Route("GET", "/contexts/{context}/sections", reading.sections, "files"),
    Route("GET", "/contexts/{context}/coverage", reading.coverage, "files", query="run"),
    Route("POST", "/contexts/{context}/search", reading.search, "files", reading.Search),
    Route("DELETE", "/contexts/{context}", handlers.delete_context, "files", status=204),
    Route("POST", "/runs", agents.start, "runs", agents.NewRun, 201, True),
    Route("POST", "/runs/upload", agents.upload, "sessions", bytes, 201),
    Route("GET", "/runs", agents.list_runs, "sessions", query="limit cursor"),
    Route("GET", "/runs/{run}", agents.show, "sessions"),
    Route("DELETE", "/runs/{run}", agents.delete, "sessions", status=204),
    Route("GET", "/runs/{run}/tree", agents.tree, "sessions"),
    Route("GET", "/runs/{run}/events", agents.events, "sessions", query="after"),
    Route("GET", "/runs/{run}/trajectory.jsonl", agents.trajectory, "sessions"),
    Route("POST", "/runs/{run}/cancel", agents.cancel, "sessions", status=202),
    Route("GET", "/whoami", overview.whoami, ""),
    Route("GET", "/stats", overview.stats, "metrics"),
    Route("GET", "/overview/events", overview.watch, "sessions"),
    Route("GET", "/usage", overview.usage, "", query="from to"),
    Route("POST", "/drain", overview.drain, "admin", status=202),
    Route("DELETE", "/drain", overview.undrain, "admin"),
    Route("POST", "/keys", operating.add_key, "admin", shapes.NewKey, 201),
    Route("GET", "/keys", operating.list_keys, "admin"),
    Route("DELETE", "/keys/{key}", operating.revoke_key, "admin", status=204),
)  # fmt: skip
_OPERATIONAL = (
    Route("GET", "/health", operating.health, None),
    Route("GET", "/ready", operating.ready, None),
    Route("GET", librechat.HEALTH, executing.health, None),
    Route("GET", "/health/detailed", operating.detailed, ""),
    Route("GET", "/metrics", operating.show_metrics, "metrics"),
)


def table(pages: Sequence[Route] = ()) -> list[tuple[re.Pattern[str], Route]]:
    """Return every route, and those of `pages`, with the pattern of its whole path."""
    return [(compile_path(one.path)[0], one) for one in (*all_routes(), *pages)]


def all_routes() -> list[Route]:
    """Return every route, with its whole path."""
    native = [replace(one, path=PREFIX + one.path) for one in _NATIVE]
    dialects = [Route(**one) for one in (*librechat.facts(), *e2b.facts(), *jupyter.facts())]
    return [*native, *_OPERATIONAL, *dialects]
