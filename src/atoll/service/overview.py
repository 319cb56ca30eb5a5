"""What an operator looks at: figures now and over the last minutes, use by day, draining."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from atoll.service import clock
from atoll.service.calls import EventResponse, as_json
from atoll.service.problems import Problem, encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from atoll.service.calls import Call
    from atoll.service.executions import Event
    from atoll.service.keys import Principal
    from atoll.service.service import Service

MOST_SAMPLES = 180
"""Fifteen minutes of them."""
EVERY_SECONDS = 1.0


class Samples:
    """The figures of the last minutes, for a line in a picture."""

    def __init__(self) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=MOST_SAMPLES)

    def take(self, service: Service) -> None:
        """Note the figures of now."""
        self._kept.append({"at": clock.now(), **_numbers(service)})

    def list(self) -> list[dict[str, Any]]:
        """Return them, oldest first."""
        return list(self._kept)


def figures(service: Service) -> dict[str, Any]:
    """Return the figures of the whole service."""
    return {
        **_numbers(service),
        "isolation": service.isolation,
        "draining": service.draining,
        "uptime_seconds": round(clock.now() - service.started, 3),
        "tiers": service.pool_stats(),
        "fleet": None if service.fleet is None else service.fleet.describe(),
        "outcomes": dict(service.metrics.outcomes),
        "rejected_by_code": dict(service.metrics.rejected),
        "limits": {
            "sessions": service.settings.max_sessions,
            "live": service.settings.max_live,
            "executing": service.settings.max_running,
            "queued": service.settings.max_queue,
        },
    }


def _numbers(service: Service) -> dict[str, Any]:
    metrics = service.metrics
    return {
        "executing": service.limit.running,
        "queued": service.limit.waiting,
        "sessions": len(service.sessions),
        "live": service.table.live,
        "runs": service.runs.running,
        "executions": sum(metrics.outcomes.values()),
        "rejected": sum(metrics.rejected.values()),
        "requests": metrics.answers,
        "cpu_seconds": round(metrics.cpu_seconds, 3),
    }


async def whoami(call: Call) -> Response:
    """Say whose key the request has, and what it may do."""
    who = call.principal
    quota = {name: getattr(who.quota, name) for name in who.quota.__slots__}
    known = {"key": who.key, "tenant": who.tenant, "scopes": sorted(who.scopes), "quota": quota}
    return as_json({**known, "use": call.service.quotas.now(who.key)})


async def stats(call: Call) -> Response:
    """Return the figures of the service, now and over the last fifteen minutes."""
    service = call.service
    await service.refresh()
    return as_json({**figures(service), "history": service.samples.list()})


async def usage(call: Call) -> Response:
    """Return what keys used by day: the tenant's, or with the scope admin everybody's."""
    begin, end = call.query("from") or "0000-01-01", call.query("to") or "9999-12-31"
    call.service.quotas.save()
    query = (
        "SELECT usage.*, keys.tenant AS tenant, keys.name AS name FROM usage"
        " LEFT JOIN keys ON keys.id = usage.key WHERE day BETWEEN ? AND ?"
        " AND (? OR keys.tenant = ?) ORDER BY day, key LIMIT 10000"
    )
    own = call.principal
    rows = call.service.ledger.all(query, begin, end, "admin" in own.scopes, own.tenant)
    return as_json({"items": [dict(row) for row in rows]})


async def drain(call: Call) -> Response:
    """Refuse new work from now on; what runs goes on. The process keeps serving reads."""
    call.service.draining = True
    running = len(call.service.executions.running)
    return as_json({"draining": True, "executing": running}, 202)


async def undrain(call: Call) -> Response:
    """Take new work again."""
    if call.service.stopping:
        raise Problem(409, "stopping", "the service was told to stop: start it again")
    call.service.draining = False
    return as_json({"draining": False})


async def watch(call: Call) -> Response:
    """Stream the figures each second (scope metrics), and the tenant's sessions as they change."""
    return EventResponse(call, _changes(call.service, call.principal))


async def _changes(service: Service, principal: Principal) -> AsyncIterator[list[Event]]:
    known: dict[str, bytes] = {}
    sees_all = bool({"metrics", "admin"} & principal.scopes)
    while not service.stopping:
        events = _session_events(service, principal, known)
        if sees_all:
            events.append((0, "stats", encode({"type": "stats", **figures(service)})))
        yield events or [(0, "keepalive", b'{"type":"keepalive"}')]
        await asyncio.sleep(EVERY_SECONDS)


def _session_events(service: Service, who: Principal, known: dict[str, bytes]) -> list[Event]:
    """Return one event of what changed since `known`, which is brought up to date."""
    changed, now = [], {}
    for one in service.sessions.of(who):
        described = one.describe()
        ticking = described.pop("idle_seconds_now")
        now[one.id] = line = encode(described)
        if known.get(one.id) != line:
            changed.append({**described, "idle_seconds_now": ticking})
    gone = sorted(known.keys() - now.keys())
    known.clear()
    known.update(now)
    if not changed and not gone:
        return []
    line = encode({"type": "sessions", "items": changed, "gone": gone})
    return [(0, "sessions", line)]
