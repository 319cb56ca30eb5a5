"""The OpenAPI 3.1 document, made of the table of routes and the shapes of bodies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from atoll import __version__
from atoll.service.http.problems import ProblemInfo
from atoll.service.http.routes import all_routes

if TYPE_CHECKING:
    from atoll.service.http.route import Route

_NAME = re.compile(r"\{(\w+)\}")
_DESCRIPTIONS = {200: "the answer", 201: "what was made", 202: "it was begun", 204: "it was done"}
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
    named = [ProblemInfo, *(shape for route in routes for shape in (route.body, *route.answers))]
    shapes = [shape for shape in dict.fromkeys(named) if shape not in (None, bytes, dict)]
    made, schemas = msgspec.json.schema_components(
        shapes, ref_template="#/components/schemas/{name}"
    )
    known = dict(zip(shapes, made, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Atoll", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _SECURITY},
    }


def _operation(route: Route, known: dict[Any, Any]) -> dict[str, Any]:
    """Return one operation; `known` has the schemas of shapes."""
    parameters = [_parameter(name, "path", required=True) for name in _NAME.findall(route.path)]
    if route.keyed:
        parameters.append(_parameter("Idempotency-Key", "header", maxLength=200))
    parameters += [
        _parameter(name.rstrip("!"), "query", required=name.endswith("!"))
        for name in route.query.split()
    ]
    status = 204 if route.is_empty else route.status
    answered: dict[str, Any] = {"description": _DESCRIPTIONS[status]}
    schemas = [known[shape] for shape in route.answers]
    if schemas:
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        answered["content"] = {"application/json": {"schema": schema}}
    refused: dict[str, Any] = {"description": "it was refused, or failed, in the form of this API"}
    if route.refuse is None:
        problem = {"application/problem+json": {"schema": known[ProblemInfo]}}
        refused = {"description": "it was refused, or failed", "content": problem}
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": (route.handler.__doc__ or "").strip().split("\n")[0],
        "parameters": parameters,
        "responses": {str(status): answered, "default": refused},
    }
    if route.detaches:
        accepted = {"description": "it goes on: ask for its result by its id"}
        operation["responses"]["202"] = {**answered, **accepted}
    if route.scope is not None:
        operation["security"] = [{route.security: [route.scope] if route.scope else []}]
    if route.body is bytes:
        operation["requestBody"] = {"content": {"application/octet-stream": {}}}
    elif route.body is not None:
        schema = {"type": "object"} if route.body is dict else known[route.body]
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation


def _parameter(name: str, where: str, *, required: bool = False, **more: int) -> dict[str, Any]:
    return {"name": name, "in": where, "required": required, "schema": {"type": "string", **more}}


def _operation_id(route: Route) -> str:
    """Return a name that no other operation has: some have the same handler at several paths."""
    words = re.sub(r"\W+", "_", route.path.removeprefix("/api/v1")).strip("_")
    return f"{route.method.lower()}_{words}"
