"""Handlers of E2B's snapshots: saved states of sandboxes, which new sandboxes start from.

A snapshot holds variables and files. One that would leave a variable out is refused: E2B's
clients have no way to hear of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET, Struct

from atoll.service.api.sessions import keep_state, saved_state
from atoll.service.dialects.e2b import wire
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, not_found
from atoll.service.http.requests import Json
from atoll.service.storage.objects import SnapshotFacts, StoredObject
from atoll.state.envelope import describe_state

if TYPE_CHECKING:
    from atoll.service.http.requests import ApiRequest

_PREFIX, _TAG = "sta_", ":default"


class NewSnapshot(Struct, kw_only=True):
    """POST /sandboxes/{id}/snapshots."""

    name: str | None = None
    memory: bool | None = None


class SnapshotInfo(Struct):
    """A snapshot, and its name if it has one."""

    snapshotID: str  # noqa: N815 - as E2B writes it
    names: list[str]


async def create(call: ApiRequest) -> Json[SnapshotInfo]:
    """Save a sandbox, which goes on running."""
    given = await call.json(NewSnapshot)
    if given.memory is False:
        raise Problem(400, "unsupported", "a snapshot has variables and files: leave `mode` out")
    hosted = call.session
    name = (given.name or "")[: bodies.MAX_METADATA_TEXT]

    async def work() -> SnapshotInfo:
        async with saved_state(call, hosted) as blob:
            left_out = dict(describe_state(blob).left_out)
            if left_out:
                what = "; ".join(f"{variable}: {why}" for variable, why in left_out.items())
                text = f"variables cannot be saved: {what}"
                raise Problem(409, "state", f"{text}. Delete them, or fork the sandbox instead")
            template = call.service.e2b.facts(hosted).template
            facts = SnapshotFacts(name=name, sandbox=hosted.id, template=template)
            return _snapshot(Snapshot(await keep_state(call, blob, facts), facts))

    return await call.once(work)


async def list_all(call: ApiRequest) -> Json[list[SnapshotInfo]]:
    """List the tenant's snapshots, newest first; `sandboxID` and `name` choose among them."""
    sandbox, name = call.query("sandboxID"), call.query("name")
    own = [
        snapshot
        for snapshot in _own(call)
        if sandbox in ("", snapshot.facts.sandbox) and name in ("", snapshot.facts.name)
    ]
    shown, headers = wire.page(call, own)
    return Json([_snapshot(snapshot) for snapshot in shown], headers=headers)


async def delete(call: ApiRequest) -> None:
    """Delete a snapshot."""
    snapshot = find(call, call.path["template"])
    if snapshot is None:
        raise not_found("snapshot")
    await call.service.objects.delete(call.principal, "state", snapshot.id)


class Snapshot(NamedTuple):
    """A state that is a snapshot."""

    state: StoredObject
    facts: SnapshotFacts

    @property
    def id(self) -> str:
        """The id of the state."""
        return self.state.id


def find(call: ApiRequest, template: str) -> Snapshot | None:
    """Return the newest snapshot with this id or name; None if the tenant has none."""
    wanted = template.removesuffix(_TAG)
    for snapshot in _own(call):
        if wanted in (snapshot.id, snapshot.facts.name):
            return snapshot
    if wanted.startswith(_PREFIX):
        raise not_found("snapshot")
    return None


def _own(call: ApiRequest) -> list[Snapshot]:
    states = call.service.objects.list(call.principal, "state")
    return [Snapshot(kept, kept.snapshot) for kept in states if kept.snapshot is not UNSET]


def _snapshot(kept: Snapshot) -> SnapshotInfo:
    return SnapshotInfo(kept.id, [kept.facts.name] if kept.facts.name else [])
