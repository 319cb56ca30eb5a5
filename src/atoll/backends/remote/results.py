"""The service's JSON as the library's results. What has another shape is a SandboxError."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxError
from atoll.sandbox.result_fields import SHAPE_ERRORS
from atoll.sandbox.wire import results
from atoll.types import Display, ExecuteResponse, SandboxResult

if TYPE_CHECKING:
    from atoll.backends.remote.connection import RemoteConnection

_NOT_SENT = ("displays", "state", "workspace_path")
"""Fields of a result that a service does not send; displays are fetched by their addresses."""
_SENT = [one.name for one in fields(SandboxResult) if one.name not in _NOT_SENT]


async def result_of(connection: RemoteConnection, answer: dict[str, Any]) -> SandboxResult:
    """Return a result; its displays are fetched."""
    try:
        rows = [[one["path"], one["size"], one["media_type"]] for one in answer["artifacts"]]
        given = {"error_args": [], **answer, "artifacts": rows}
        result = results.read(SandboxResult, {name: given[name] for name in _SENT}, who="service")
        shown = [
            Display(
                media_type=str(one["media_type"]),
                data=(await connection.request("GET", one["url"].removeprefix("/api/v1"))).content,
            )
            for one in answer["displays"]
        ]
        return replace(result, displays=tuple(shown))
    except SHAPE_ERRORS as exc:
        raise SandboxError(f"the service sent no result: {exc!r}"[:500]) from None


def response_of(answer: dict[str, Any]) -> ExecuteResponse:
    """Return the result of a shell command."""
    try:
        given = {"stderr": "", "network": None, **answer}
        plain = {one.name: given[one.name] for one in fields(ExecuteResponse)}
        return results.read(ExecuteResponse, plain, who="service")
    except SHAPE_ERRORS as exc:
        raise SandboxError(f"the service sent no result: {exc!r}"[:500]) from None


def listing_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Return a listing of variables as a guest writes it, to be checked like one."""
    try:
        names = ("name", "type", "size", "shape")
        rows = [[one[name] for name in names] for one in answer["variables"]]
    except SHAPE_ERRORS as exc:
        raise SandboxError(f"the service sent no listing: {exc!r}"[:500]) from None
    return {"variables": rows, "truncated": answer.get("truncated")}
