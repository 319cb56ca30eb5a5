"""Handlers for operators: keys, health, metrics."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, structs
from starlette.responses import Response

from atoll import __version__
from atoll.errors import ConfigError
from atoll.service import clock
from atoll.service.access.admission import BudgetUse
from atoll.service.access.keys import KeyInfo, Quota
from atoll.service.access.quotas import KeyUse
from atoll.service.api.overview import Tiers
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, not_found
from atoll.service.http.requests import Json
from atoll.service.telemetry import metrics

if TYPE_CHECKING:
    from atoll.service.http.requests import ApiRequest


class MadeKey(Struct):
    """A key, which is shown once."""

    id: str
    key: str


class KeyWithUse(KeyInfo, kw_only=True):
    """A key without its secret, and what it uses now."""

    use: KeyUse


class KeyList(Struct):
    """All keys."""

    items: list[KeyWithUse]


class Health(Struct):
    """That the process lives."""

    status: Literal["healthy"] = "healthy"
    service: Literal["atoll"] = "atoll"
    version: str = __version__


class Ready(Struct):
    """That the service takes new work."""

    status: Literal["ready"] = "ready"


class SandboxHealth(Struct, kw_only=True):
    """How the sandboxes are."""

    status: Literal["healthy", "unhealthy"]
    isolation: str | None
    tiers: Tiers
    sessions: int
    live: int
    executing: int
    queued: int


class DetailedHealth(Struct, kw_only=True):
    """How the service is, and its problems."""

    status: Literal["healthy", "degraded", "unhealthy"]
    version: str = __version__
    uptime_seconds: float
    draining: bool
    problems: list[str]
    sandbox: SandboxHealth
    memory: BudgetUse
    disk: BudgetUse
    free_bytes: int
    """Free space where the service's folder is."""


async def add_key(call: ApiRequest) -> MadeKey:
    """Make a key. It is shown once."""
    given = await call.json(bodies.NewKey)
    key = call.service.keys.add(
        given.name,
        tenant=given.tenant,
        scopes=given.scopes,
        seconds=given.expires_seconds,
        quota=_quota(given.quota),
    )
    ident = key.split("_")[1]
    call.audit("key made", ident, name=given.name, of=given.tenant)
    await call.service.share_keys()
    return MadeKey(ident, key)


async def list_keys(call: ApiRequest) -> KeyList:
    """List all keys, without their secrets."""
    quotas, keys = call.service.quotas, call.service.keys.list()
    return KeyList([KeyWithUse(**structs.asdict(key), use=quotas.now(key.id)) for key in keys])


async def change_key(call: ApiRequest) -> KeyWithUse:
    """Change the name and limits of a key; they hold from its next request on."""
    given, service = await call.json(bodies.ChangedKey), call.service
    if service.fleet is not None:
        text = "services in front of a fleet share keys as they were made: make another one"
        raise Problem(501, "unsupported", text)
    try:
        key = service.keys.change(call.path["key"], given.name, given.quota)
    except TypeError as exc:
        raise ConfigError(str(exc)) from None
    if key is None:
        raise not_found("key")
    changes = {name: key.quota[name] for name in given.quota}
    call.audit("key changed", key.id, **changes, **({"name": key.name} if given.name else {}))
    return KeyWithUse(**structs.asdict(key), use=service.quotas.now(key.id))


async def revoke_key(call: ApiRequest) -> None:
    """Refuse a key from now on."""
    if not call.service.keys.revoke(call.path["key"]):
        raise Problem(404, "not_found", "there is no such key, or it is revoked already")
    call.audit("key revoked", call.path["key"])
    call.service.streams.end_refused()
    await call.service.share_keys()


async def health(_call: ApiRequest) -> Health:
    """Say that the process lives."""
    return Health()


async def ready(call: ApiRequest) -> Ready:
    """Say whether the service takes new work."""
    call.service.require_accepting()
    if call.service.isolation is None:
        raise Problem(503, "unavailable", f"no sandbox can be opened: {call.service.why_not}")
    return Ready()


async def detailed(call: ApiRequest) -> Json[DetailedHealth]:
    """Say how the sandboxes, the queue and the database are."""
    service = call.service
    await service.refresh()
    broken: list[str] = []
    degraded: list[str] = []
    if service.isolation is None:
        broken.append(f"no sandbox can be opened: {service.why_not}")
    try:
        service.database.one("SELECT COUNT(*) AS n FROM keys")
    except Exception as exc:  # noqa: BLE001 - health is for faults of every kind
        broken.append(f"the database cannot be read: {type(exc).__name__}")
    tiers = service.pool_stats()
    for name, stats in tiers.items():
        degraded += [f"tier {name} lacks {library}" for library in stats["missing"]]
    if service.replicas is not None and service.replicas.problem:
        degraded.append(service.replicas.problem)
    if service.fleet is not None:
        degraded += service.fleet.describe().problems
    answer = DetailedHealth(
        status="unhealthy" if broken else "degraded" if degraded or service.draining else "healthy",
        uptime_seconds=round(clock.now() - service.started, 3),
        draining=service.draining,
        problems=broken + degraded,
        sandbox=SandboxHealth(
            status="unhealthy" if service.isolation is None else "healthy",
            isolation=service.isolation,
            tiers=tiers,
            sessions=len(service.sessions),
            live=service.table.live,
            executing=service.limit.running,
            queued=service.limit.waiting,
        ),
        memory=service.memory.describe(),
        disk=service.disk.describe(),
        free_bytes=await asyncio.to_thread(lambda: shutil.disk_usage(service.settings.folder).free),
    )
    return Json(answer, 503 if broken else 200, {"x-health-status": answer.status})


async def show_metrics(call: ApiRequest) -> Response:
    """Return counters for Prometheus."""
    await call.service.refresh()
    return Response(call.service.metrics.text(), headers={"content-type": metrics.CONTENT_TYPE})


def _quota(given: dict[str, Any]) -> Quota:
    try:
        return Quota.of(given)
    except TypeError as exc:
        raise ConfigError(str(exc)) from None
