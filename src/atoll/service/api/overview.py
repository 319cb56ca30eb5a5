"""What an operator looks at: figures now and over the last minutes, use by day, draining."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from atoll.service import clock
from atoll.service.http.problems import Problem, encode
from atoll.service.http.requests import EventResponse, as_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from atoll.service.access.keys import Principal
    from atoll.service.core.executions import Event
    from atoll.service.core.service import Service
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import Call

MOST_SAMPLES = 180
"""Fifteen minutes of them."""
EVERY_SECONDS = 1.0


class _Described(NamedTuple):
    """A session as a tenant sees it."""

    ident: str
    line: bytes
    """All that does not change with each second, to compare."""
    facts: dict[str, Any]


def _described(session: HostedSession) -> _Described:
    facts = session.describe()
    lasting = {name: one for name, one in facts.items() if name != "idle_seconds_now"}
    return _Described(session.id, encode(lasting), facts)


class Samples:
    """The figures of the last minutes, for a line in a picture."""

    def __init__(self) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=MOST_SAMPLES)
        self._described: dict[str, tuple[float, list[_Described]]] = {}

    def take(self, service: Service) -> None:
        """Note the figures of now; forget what is described of sessions that nobody watches."""
        self._kept.append({"at": clock.now(), **_numbers(service)})
        old = time.monotonic() - EVERY_SECONDS
        self._described = {who: one for who, one in self._described.items() if one[0] > old}

    def sessions(self, service: Service, who: Principal) -> list[_Described]:
        """Describe a tenant's sessions, once for all that watch them at about the same time.

        To describe one asks the kernel what it uses: with hundreds of watchers, and anew for each,
        that would keep the event loop busy.
        """
        at, found = self._described.get(who.tenant, (0.0, []))
        if time.monotonic() - at > EVERY_SECONDS / 2:
            found = [_described(one) for one in service.sessions.of(who)]
            self._described[who.tenant] = time.monotonic(), found
        return found

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
    for one in service.samples.sessions(service, who):
        now[one.ident] = one.line
        if known.get(one.ident) != one.line:
            changed.append(one.facts)
    gone = sorted(known.keys() - now.keys())
    known.clear()
    known.update(now)
    if not changed and not gone:
        return []
    line = encode({"type": "sessions", "items": changed, "gone": gone})
    return [(0, "sessions", line)]
