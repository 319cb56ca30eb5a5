"""The service's JSON as the library's results. What has another shape is a SandboxError."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxError
from atoll.guest import values
from atoll.network import NetworkRequest, NetworkUse
from atoll.policy import Isolation
from atoll.result_fields import SHAPE_ERRORS
from atoll.types import Display, ExecuteResponse, Outcome, SandboxResult
from atoll.wire import results

if TYPE_CHECKING:
    from atoll.backends.remote.connection import RemoteConnection

_PLAIN = (
    "stdout", "stderr", "error", "error_type", "exit_code", "duration_ms", "cpu_ms", "value_repr",
    "truncated", "state_lost", "fuel_consumed", "memory_used_bytes", "cold_start",
)  # fmt: skip


async def result_of(connection: RemoteConnection, answer: dict[str, Any]) -> SandboxResult:
    """Return a result; its displays are fetched."""
    try:
        shown = [
            Display(
                media_type=str(one["media_type"]),
                data=(await connection.request("GET", _within(one["url"]))).content,
            )
            for one in answer["displays"]
        ]
        artifacts = tuple(
            results.artifact(one["path"], one["size"], one["media_type"])
            for one in answer["artifacts"]
        )
        return SandboxResult(
            kind=Outcome(answer["kind"]),
            **results.checked({name: answer[name] for name in _PLAIN}),
            value=values.decode_plain(answer["value"]),
            error_args=tuple(values.decode_plain(one) for one in answer.get("error_args", ())),
            displays=tuple(shown),
            artifacts=artifacts,
            files_created=results.files(answer["files_created"]),
            files_modified=results.files(answer["files_modified"]),
            isolation=Isolation.parse(answer["isolation"]),
            network=_network_of(answer),
        )
    except SHAPE_ERRORS as exc:
        raise SandboxError(f"the service sent no result: {exc!r}"[:500]) from None


def response_of(answer: dict[str, Any]) -> ExecuteResponse:
    """Return the result of a shell command."""
    try:
        names = ("output", "exit_code", "truncated", "error")
        fields = {name: answer[name] for name in names}
        fields["stderr"] = answer.get("stderr", "")
        return ExecuteResponse(**results.checked(fields), network=_network_of(answer))
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


def _network_of(answer: dict[str, Any]) -> NetworkUse | None:
    use = answer.get("network")
    if use is None:
        return None
    rows = tuple(NetworkRequest(**one) for one in use["requests"])
    return NetworkUse(requests=rows, unlisted=use["unlisted"])


def _within(url: str) -> str:
    return url.removeprefix("/api/v1")
