"""What an operator looks at: figures now and over the last minutes, use by day, draining."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from msgspec import UNSET, Struct, UnsetType, structs

from atoll.service import clock
from atoll.service.access.keys import Quota
from atoll.service.access.quotas import KeyUse
from atoll.service.http.problems import Problem, encode
from atoll.service.http.requests import EventResponse
from atoll.service.http.streams import KEEPALIVE, event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.core.tenant_session import HostedSession, SessionInfo
    from atoll.service.http.requests import ApiRequest
    from atoll.service.http.streams import Event

MAX_SAMPLES = 180
"""Fifteen minutes of them."""
EVERY_SECONDS = 1.0


Tiers = dict[str, dict[str, Any]]
"""What a pool says of its tiers of warm sandboxes, by name."""


class NodeInfo(Struct, kw_only=True):
    """What an operator sees of a node."""

    name: str
    load: float
    sessions: int
    capacity: int
    executing: int
    queued: int
    executions: int
    durable: int
    save_lag: float
    draining: bool
    isolation: str
    tiers: Tiers


class FleetInfo(Struct, kw_only=True):
    """What an operator sees of a fleet."""

    address: str
    ident: str | None
    problems: list[str]
    nodes: list[NodeInfo]


class Figures(Struct, kw_only=True):
    """What the service does now, and has done since it started."""

    executing: int
    queued: int
    sessions: int
    live: int
    runs: int
    executions: int
    rejected: int
    requests: int
    cpu_seconds: float

    @classmethod
    def of(cls, service: Service) -> Self:
        """Return the figures of now."""
        metrics = service.metrics
        return cls(
            executing=service.limit.running,
            queued=service.limit.waiting,
            sessions=len(service.sessions),
            live=service.table.live,
            runs=service.runs.running,
            executions=sum(metrics.outcomes.values()),
            rejected=sum(metrics.rejected.values()),
            requests=metrics.answers,
            cpu_seconds=round(metrics.cpu_seconds, 3),
        )


class Sample(Figures, kw_only=True):
    """The figures of a moment."""

    at: float


class Limits(Struct, kw_only=True):
    """What the service may do at a time."""

    sessions: int
    live: int
    executing: int
    queued: int


class Overview(Figures, kw_only=True):
    """The figures of the whole service."""

    isolation: str | None
    draining: bool
    uptime_seconds: float
    tiers: Tiers
    fleet: FleetInfo | None
    outcomes: dict[str, int]
    rejected_by_code: dict[str, int]
    limits: Limits

    @classmethod
    def of_service(cls, service: Service, **more: Any) -> Self:
        """Return the figures of now."""
        settings = service.settings
        return cls(
            **structs.asdict(Figures.of(service)),
            isolation=service.isolation,
            draining=service.draining,
            uptime_seconds=round(clock.now() - service.started, 3),
            tiers=service.pool_stats(),
            fleet=None if service.fleet is None else service.fleet.describe(),
            outcomes=dict(service.metrics.outcomes),
            rejected_by_code=dict(service.metrics.rejected),
            limits=Limits(
                sessions=settings.max_sessions,
                live=settings.max_live,
                executing=settings.max_running,
                queued=settings.max_queue,
            ),
            **more,
        )


class Stats(Overview, kw_only=True):
    """The figures of the whole service, and those of the last fifteen minutes."""

    history: list[Sample]


class WhoAmI(Struct, kw_only=True):
    """Whose key a request has, what it may do, and what it uses."""

    key: str
    tenant: str
    scopes: list[str]
    quota: Quota
    use: KeyUse


class DayUse(Struct, kw_only=True):
    """What a key used on a day (UTC)."""

    day: str
    key: str
    executions: int
    cpu_seconds: float
    preview_requests: int
    preview_bytes: int
    """Requests of visitors of its previews, and bytes in both directions."""
    tenant: str | None
    name: str | None


class DayUses(Struct):
    """What keys used by day."""

    items: list[DayUse]


class Draining(Struct):
    """Whether new work is refused, and how much still runs."""

    draining: bool
    executing: int | UnsetType = UNSET


class _Described(NamedTuple):
    """A session as a tenant sees it."""

    line: bytes
    """All that does not change with each second, to compare."""
    info: SessionInfo


def _described(session: HostedSession) -> _Described:
    info = session.describe()
    return _Described(encode(structs.replace(info, idle_seconds_now=0.0)), info)


class Samples:
    """The figures of the last minutes, for a line in a picture."""

    def __init__(self) -> None:
        self._kept: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._described: dict[str, tuple[float, list[_Described]]] = {}

    def take(self, service: Service) -> None:
        """Note the figures of now; forget descriptions of sessions that are not watched."""
        self._kept.append(Sample(**structs.asdict(Figures.of(service)), at=clock.now()))
        old = time.monotonic() - EVERY_SECONDS
        self._described = {who: known for who, known in self._described.items() if known[0] > old}

    def sessions(self, service: Service, who: Principal) -> list[_Described]:
        """Describe a tenant's sessions, once for all that watch them at about the same time.

        To describe one asks the kernel what it uses: with hundreds of watchers, and anew for each,
        that would keep the event loop busy.
        """
        at, described = self._described.get(who.tenant, (-math.inf, []))
        if time.monotonic() - at > EVERY_SECONDS / 2:
            described = [_described(session) for session in service.sessions.of(who)]
            self._described[who.tenant] = time.monotonic(), described
        return described

    def list(self) -> list[Sample]:
        """Return them, oldest first."""
        return list(self._kept)


async def whoami(call: ApiRequest) -> WhoAmI:
    """Say whose key the request has, and what it may do."""
    who = call.principal
    return WhoAmI(
        key=who.key,
        tenant=who.tenant,
        scopes=sorted(who.scopes),
        quota=who.quota,
        use=call.service.quotas.now(who.key),
    )


async def stats(call: ApiRequest) -> Stats:
    """Return the figures of the service, now and over the last fifteen minutes."""
    await call.service.refresh()
    return Stats.of_service(call.service, history=call.service.samples.list())


async def usage(call: ApiRequest) -> DayUses:
    """Return what keys used by day: the tenant's, or with the scope admin everybody's."""
    begin, end = call.query("from") or "0000-01-01", call.query("to") or "9999-12-31"
    call.service.quotas.save()
    call.service.previews.limits.save()
    query = (
        "SELECT day, key, coalesce(executions, 0) AS executions,"
        " coalesce(cpu_seconds, 0) AS cpu_seconds, coalesce(requests, 0) AS preview_requests,"
        " coalesce(bytes, 0) AS preview_bytes, keys.tenant AS tenant, keys.name AS name"
        " FROM (SELECT day, key FROM usage UNION SELECT day, key FROM preview_usage)"
        " LEFT JOIN usage USING (day, key) LEFT JOIN preview_usage USING (day, key)"
        " LEFT JOIN keys ON keys.id = key WHERE day BETWEEN ? AND ?"
        " AND (? OR keys.tenant = ?) ORDER BY day, key LIMIT 10000"
    )
    own = call.principal
    rows = call.service.database.all(query, begin, end, "admin" in own.scopes, own.tenant)
    return DayUses([DayUse(**dict(row)) for row in rows])


async def drain(call: ApiRequest) -> Draining:
    """Refuse new work from now on; what runs goes on. The process keeps serving reads."""
    call.audit("drain")
    call.service.draining = True
    return Draining(True, len(call.service.executions.running))


async def undrain(call: ApiRequest) -> Draining:
    """Take new work again."""
    if call.service.stopping:
        raise Problem(409, "stopping", "the service is about to stop: start it again")
    call.audit("undrain")
    call.service.draining = False
    return Draining(False)


async def watch(call: ApiRequest) -> EventResponse:
    """Stream the figures each second (scope metrics), and the tenant's sessions as they change."""
    return EventResponse(call, _changes(call.service, call.principal))


async def _changes(service: Service, principal: Principal) -> AsyncIterator[list[Event]]:
    known: dict[str, bytes] = {}
    sees_all = bool({"metrics", "admin"} & principal.scopes)
    while not service.stopping:
        events = _session_events(service, principal, known)
        if sees_all:
            events.append(event("stats", **structs.asdict(Overview.of_service(service))))
        yield events or [KEEPALIVE]
        await asyncio.sleep(EVERY_SECONDS)


def _session_events(service: Service, who: Principal, known: dict[str, bytes]) -> list[Event]:
    """Return the changes since `known` as one event, and bring `known` up to date."""
    changed, now = [], {}
    for line, info in service.samples.sessions(service, who):
        now[info.id] = line
        if known.get(info.id) != line:
            changed.append(info)
    gone = sorted(known.keys() - now.keys())
    known.clear()
    known.update(now)
    return [event("sessions", items=changed, gone=gone)] if changed or gone else []
