"""The OpenAPI 3.1 document, made of the table of routes and the shapes of bodies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from atoll import __version__
from atoll.service.api import agent_runs, executions, sessions
from atoll.service.dialects.e2b import control, snapshots
from atoll.service.http.routes import all_routes

if TYPE_CHECKING:
    from atoll.service.http.routes import Route

_NAME = re.compile(r"\{(\w+)\}")
_KEYED = frozenset({
    executions.run, executions.execute, executions.shell, sessions.create, sessions.fork,
    sessions.checkpoint, sessions.save, agent_runs.start, control.create, snapshots.create,
})  # fmt: skip
"""What can be asked for once, by an idempotency key."""
_PROBLEM = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "retryable": {"type": "boolean"},
        "request_id": {"type": "string"},
    },
    "required": ["title", "status", "code", "detail", "retryable"],
}


_SECURITY = {
    "key": {"type": "http", "scheme": "bearer"},
    "librechat": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "jupyter": {"type": "apiKey", "in": "query", "name": "token"},
    "e2b_key": {"type": "apiKey", "in": "header", "name": "X-API-KEY"},
    "e2b_token": {"type": "apiKey", "in": "header", "name": "X-Access-Token"},
    "e2b_signature": {"type": "apiKey", "in": "query", "name": "signature"},
}


def document() -> dict[str, Any]:
    """Return the document."""
    routes = all_routes()
    named = [shape for one in routes for shape in (one.body, one.answer)]
    shapes = [one for one in named if one not in (None, bytes, dict)]
    bodies, schemas = msgspec.json.schema_components(
        shapes, ref_template="#/components/schemas/{name}"
    )
    known = {id(shape): schema for shape, schema in zip(shapes, bodies, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Atoll", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Problem": _PROBLEM},
            "securitySchemes": _SECURITY,
        },
    }


def _operation(route: Route, known: dict[int, Any]) -> dict[str, Any]:
    parameters = [
        {"name": one, "in": "path", "required": True, "schema": {"type": "string"}}
        for one in _NAME.findall(route.path)
    ]
    if route.handler in _KEYED:
        text = {"type": "string", "maxLength": 200}
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": text})
    parameters += [
        {"name": one.rstrip("!"), "in": "query", "required": one.endswith("!"),
         "schema": {"type": "string"}}
        for one in route.query.split()
    ]  # fmt: skip
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    refused: dict[str, Any] = {"description": "it was refused, or failed", "content": problem}
    if route.refuse is not None:
        refused = {"description": "it was refused, or failed, as this API tells it"}
    found: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": (route.handler.__doc__ or "").strip().split("\n")[0],
        "parameters": parameters,
        "responses": {
            str(route.status): {"description": "as the summary says"},
            "default": refused,
        },
    }
    if route.answer is not None:
        answered = {"application/json": {"schema": known[id(route.answer)]}}
        found["responses"][str(route.status)]["content"] = answered
    if route.detaches:
        found["responses"]["202"] = {"description": "it goes on: ask for its result by its id"}
    if route.scope is not None:
        found["security"] = [{route.security: [route.scope] if route.scope else []}]
    if route.body is bytes:
        found["requestBody"] = {"content": {"application/octet-stream": {}}}
    elif route.body is not None:
        schema = {"type": "object"} if route.body is dict else known[id(route.body)]
        found["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return found


def _operation_id(route: Route) -> str:
    """Return a name that no other operation has: some have the same handler at several paths."""
    words = re.sub(r"\W+", "_", route.path.removeprefix("/api/v1")).strip("_")
    return f"{route.method.lower()}_{words}"
