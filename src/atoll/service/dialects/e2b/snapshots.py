"""Handlers of E2B's snapshots: saved states of sandboxes, which new sandboxes start from.

A snapshot holds variables and files. One that would leave a variable out is refused: E2B's
clients have no way to hear of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from atoll.service.api.sessions import keep_state, saved_state
from atoll.service.core.processes import PLACE
from atoll.service.core.sessions import MAX_PAGE
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, not_found
from atoll.service.http.requests import as_json, nothing
from atoll.state.envelope import describe_state

if TYPE_CHECKING:
    from starlette.responses import Response

    from atoll.service.http.requests import Call

_PREFIX, _TAG = "sta_", ":default"


class NewSnapshot(Struct, kw_only=True):
    """POST /sandboxes/{id}/snapshots."""

    name: str | None = None
    memory: bool | None = None


async def create(call: Call) -> Response:
    """Save a sandbox, which goes on running."""
    given = await call.json(NewSnapshot)
    if given.memory is False:
        raise Problem(400, "unsupported", "a snapshot has variables and files: leave `mode` out")
    hosted = call.session
    name = (given.name or "")[: bodies.MAX_METADATA_TEXT]

    async def work() -> tuple[int, Any]:
        async with saved_state(call, hosted) as blob:
            left_out = dict(describe_state(blob).left_out)
            if not await hosted.processes.running():
                left_out.pop(PLACE, None)  # the output of commands that have ended
            if left_out:
                what = "; ".join(f"{one}: {why}" for one, why in left_out.items())
                text = f"variables cannot be saved: {what}"
                raise Problem(409, "state", f"{text}. Delete them, or fork the sandbox instead")
            facts = {"sandbox": hosted.id, "template": call.service.e2b.facts(hosted).template}
            kept = await keep_state(call, blob, snapshot={"name": name, **facts})
        return 201, _snapshot(kept)

    return await call.once(work)


async def list_all(call: Call) -> Response:
    """List the tenant's snapshots, newest first; `sandboxID` and `name` choose among them."""
    wanted = {"sandbox": call.query("sandboxID"), "name": call.query("name")}
    own = [
        one
        for one in _own(call)
        if all(not text or one["snapshot"][name] == text for name, text in wanted.items())
    ]
    limit = max(1, min(call.number("limit", 100), MAX_PAGE))
    after = [n for n, one in enumerate(own) if one["id"] == call.query("nextToken")]
    begin = after[0] + 1 if after else 0
    shown = own[begin : begin + limit]
    response = as_json([_snapshot(one) for one in shown])
    if begin + limit < len(own):
        response.headers["x-next-token"] = shown[-1]["id"]
    return response


async def delete(call: Call) -> Response:
    """Delete a snapshot."""
    found = find(call, call.path["template"])
    if found is None:
        raise not_found("snapshot")
    await call.service.objects.delete(call.principal, "state", found["id"])
    return nothing()


def find(call: Call, template: str) -> dict[str, Any] | None:
    """Return the newest snapshot with this id or name; None if the tenant has none."""
    wanted = template.removesuffix(_TAG)
    for one in _own(call):
        if wanted in (one["id"], one["snapshot"]["name"]):
            return one
    if wanted.startswith(_PREFIX):
        raise not_found("snapshot")
    return None


def _own(call: Call) -> list[dict[str, Any]]:
    return [one for one in call.service.objects.list(call.principal, "state") if "snapshot" in one]


def _snapshot(kept: dict[str, Any]) -> dict[str, Any]:
    name = kept["snapshot"]["name"]
    return {"snapshotID": kept["id"], "names": [name] if name else []}
