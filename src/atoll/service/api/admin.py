"""Handlers for operators: keys, health, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from atoll import __version__
from atoll.errors import ConfigError
from atoll.service import clock
from atoll.service.access.keys import Quota
from atoll.service.http import bodies
from atoll.service.http.problems import Problem
from atoll.service.http.requests import as_json, nothing
from atoll.service.telemetry import metrics

if TYPE_CHECKING:
    from atoll.service.http.requests import Call


async def add_key(call: Call) -> Response:
    """Make a key. It is shown once."""
    given = await call.json(bodies.NewKey)
    key = call.service.keys.add(
        given.name,
        tenant=given.tenant,
        scopes=given.scopes,
        seconds=given.expires_seconds,
        quota=_quota(given.quota),
    )
    await call.service.share_keys()
    return as_json({"id": key.split("_")[1], "key": key}, 201)


async def list_keys(call: Call) -> Response:
    """List all keys, without their secrets."""
    quotas = call.service.quotas
    return as_json(
        {"items": [{**one, "use": quotas.now(one["id"])} for one in call.service.keys.list()]}
    )


async def revoke_key(call: Call) -> Response:
    """Refuse a key from now on."""
    if not call.service.keys.revoke(call.path["key"]):
        raise Problem(404, "not_found", "there is no such key, or it is revoked already")
    call.service.streams.end_refused()
    await call.service.share_keys()
    return nothing()


async def health(_call: Call) -> Response:
    """Say that the process lives."""
    return as_json({"status": "healthy", "service": "atoll", "version": __version__})


async def ready(call: Call) -> Response:
    """Say whether the service takes new work."""
    call.service.require_accepting()
    if call.service.isolation is None:
        raise Problem(503, "unavailable", f"no sandbox can be opened: {call.service.why_not}")
    return as_json({"status": "ready"})


async def detailed(call: Call) -> Response:
    """Say how the sandboxes, the queue and the database are."""
    service = call.service
    await service.refresh()
    problems: list[str] = []
    degraded: list[str] = []
    if service.isolation is None:
        problems.append(f"no sandbox can be opened: {service.why_not}")
    try:
        service.ledger.one("SELECT COUNT(*) AS n FROM keys")
    except Exception as exc:  # noqa: BLE001 - health is for faults of every kind
        problems.append(f"the database cannot be read: {type(exc).__name__}")
    if service.replicas is not None and service.replicas.problem:
        degraded.append(service.replicas.problem)
    if service.fleet is not None:
        degraded += service.fleet.describe()["problems"]
    tiers = service.pool_stats()
    missing = [f"tier {name} lacks {one}" for name, t in tiers.items() for one in t["missing"]]
    missing += degraded
    status = "unhealthy" if problems else "degraded" if missing or service.draining else "healthy"
    sandbox = {
        "status": "unhealthy" if service.isolation is None else "healthy",
        "isolation": service.isolation,
        "tiers": tiers,
        "sessions": len(service.sessions),
        "live": service.table.live,
        "executing": service.limit.running,
        "queued": service.limit.waiting,
    }
    answer = {
        "status": status,
        "version": __version__,
        "uptime_seconds": round(clock.now() - service.started, 3),
        "draining": service.draining,
        "problems": problems + missing,
        "sandbox": sandbox,
        "memory": service.memory.describe(),
        "disk": service.disk.describe(),
    }
    response = as_json(answer, 503 if problems else 200)
    response.headers["x-health-status"] = status
    return response


async def show_metrics(call: Call) -> Response:
    """Return counters for Prometheus."""
    await call.service.refresh()
    return Response(call.service.metrics.text(), headers={"content-type": metrics.CONTENT_TYPE})


def _quota(given: dict[str, Any]) -> Quota:
    try:
        return Quota.of(given)
    except TypeError as exc:
        raise ConfigError(str(exc)) from None
