"""Checks the answers of services under test against the schemas of /openapi.json."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator
from own_service import SentAnswer

from atoll.service.http import openapi, routes

DOCUMENT = openapi.document()
PATTERNS = [one for one in routes.table() if not one[1].page]
_PROBLEM = {"$ref": "#/components/schemas/ProblemInfo"}


def success(operation: dict[str, Any]) -> dict[str, Any]:
    """The response of an operation that is not an error, whatever its status."""
    responses = operation["responses"]
    return next(
        (one for code, one in responses.items() if code in ("200", "201", "204")),
        responses.get("202", {}),
    )


def fault(answer: SentAnswer) -> str:
    """What is wrong with an answer; empty if its schema allows it."""
    if answer.query == b"raw=1":  # as the guest's protocol has it, for the `remote` backend
        return ""
    route = next(
        (
            route
            for pattern, route in PATTERNS
            if route.method == answer.method and pattern.match(answer.path)
        ),
        None,
    )
    if route is None:
        return ""
    operation = DOCUMENT["paths"][route.path][route.method.lower()]
    if answer.is_problem:
        schema = _PROBLEM
    else:
        content = success(operation).get("content")
        if content is None:
            return f"{route.method} {route.path} answers JSON, and the document has no schema"
        schema = content["application/json"]["schema"]
    whole = {**schema, "components": DOCUMENT["components"]}
    errors = Draft202012Validator(whole).iter_errors(json.loads(answer.body))
    told = [f"{one.json_path}: {one.message}"[:300] for one in errors]
    return f"{route.method} {route.path}: {told}" if told else ""
