"""The sessions of all tenants: opened, found, forked, ended, expired.

Each is a session of the daemon's own table, which saves idle ones to disk when memory is short.
SECURITY: a session is looked up under its tenant, and forks stay with it.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Literal, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from atoll.errors import SandboxLostError
from atoll.sandbox.signatures import DESCRIPTION
from atoll.service import clock
from atoll.service.access.cpu import CpuMeter
from atoll.service.core.contexts import close
from atoll.service.core.tenant_session import HostedSession, SessionFacts, SessionInfo, SharedFacts
from atoll.service.http.problems import Problem, encode, not_found
from atoll.service.ids import new_id

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator

    from atoll.config import SandboxConfig
    from atoll.hosting.client_callbacks import ClientCallbacks
    from atoll.hosting.sessions import HostedSandbox
    from atoll.sandbox.base import BaseSandbox
    from atoll.service.access.keys import Principal
    from atoll.service.cluster.directory import SessionRecord
    from atoll.service.core.service import Service
    from atoll.service.http.bodies import Life
    from atoll.service.storage.database import Database

MAX_PAGE = 200
OVERHEAD = 4 << 10
"""What a session takes in the service besides its configuration and its cells, about."""
_CONFIG = "the configuration of a session"
STOPPED = "the service was stopped"
MAX_NODES = 2_000
_FAMILY = """
WITH RECURSIVE up(id, parent, depth) AS (
    SELECT id, parent, 0 FROM sessions WHERE id = :id AND tenant = :tenant
    UNION ALL
    SELECT s.id, s.parent, depth + 1 FROM sessions s JOIN up ON s.id = up.parent
    WHERE s.tenant = :tenant
    LIMIT :most),
down(id) AS (
    SELECT id FROM (SELECT id FROM up ORDER BY depth DESC LIMIT 1)
    UNION ALL
    SELECT s.id FROM sessions s JOIN down ON s.parent = down.id WHERE s.tenant = :tenant
    LIMIT :most)
SELECT s.id, s.parent, s.created, s.ended, s.reason FROM sessions s JOIN down ON s.id = down.id
ORDER BY s.created LIMIT :most
"""
_LOG = logging.getLogger("atoll.service")


class TreeNode(Struct, kw_only=True):
    """A session, one that has ended, or a checkpoint."""

    id: str
    kind: Literal["session", "mark"]
    name: str = ""
    parent: str | None
    created_at: float
    state: str
    current: bool = False
    """Whether it is the session that was asked for."""
    memory_bytes: int | UnsetType | None = UNSET
    executions: int | UnsetType = UNSET
    ended_at: float | UnsetType | None = UNSET
    reason: str | UnsetType | None = UNSET
    rolled_back: bool | UnsetType = UNSET
    """Whether its session went back to it last."""


class ForkTree(Struct):
    """Sessions and checkpoints that have an ancestor in common."""

    root: str
    nodes: list[TreeNode]
    truncated: bool


class SessionPage(Struct):
    """Some sessions, and where the next page begins."""

    items: list[SessionInfo]
    next_cursor: str | None


def _age(session: HostedSession) -> tuple[float, str]:
    return session.facts.created, session.id


def config_size(config: SandboxConfig) -> int:
    """Return what a session keeps of its configuration, in bytes of JSON."""
    tools = [vars(tool).get(DESCRIPTION) for tool in config.tools.values()]
    return OVERHEAD + len(encode([dict(config.policy.env), config.argv, tools]))


class Sessions:
    """Finds sessions by id and tenant."""

    def __init__(self, service: Service) -> None:
        self._settings, self._database = service.settings, service.database
        self._budget = service.memory
        self._table, self._quotas, self._cpu = service.table, service.quotas, service.cpu
        self._fleet, self._replicas = service.fleet, service.replicas
        self._streams, self._metrics = service.streams, service.metrics
        self._sessions: dict[str, HostedSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, ident: str) -> bool:
        return ident in self._sessions

    @property
    def idents(self) -> list[str]:
        """The ids of all that have not ended."""
        return list(self._sessions)

    def all(self) -> list[HostedSession]:
        """Return the sessions of all tenants."""
        return list(self._sessions.values())

    async def open(
        self,
        principal: Principal,
        config: SandboxConfig,
        callbacks: ClientCallbacks,
        life: Life,
        context_id: str | None = None,
    ) -> HostedSession:
        """Start a session; `context_id` names the context that it has, if that was uploaded."""
        self._check_life(life)
        self._quotas.require_cpu(principal)
        held = self._budget.admit(principal, config_size(config), _CONFIG)
        async with self._counted(principal):
            session = await self._table.open(config, callbacks)
        facts = SessionFacts(
            id=new_id("ses"),
            tenant=principal.tenant,
            key=principal.key,
            created=clock.now(),
            idle_seconds=life.idle_seconds or self._settings.idle_seconds,
            max_seconds=life.max_seconds or self._settings.max_seconds,
            metadata=life.metadata or {},
            context_id=context_id,
        )
        hosted = HostedSession(principal, session, callbacks, facts)
        hosted.held = held
        return self._keep(hosted)

    async def fork(self, principal: Principal, parent: HostedSession, name: str) -> HostedSession:
        """Start a live clone of a session."""
        self._quotas.require_cpu(principal)
        held = self._budget.admit(principal, config_size(parent.session.config), _CONFIG)
        async with self._counted(principal):
            callbacks, config = parent.session.clone_config()
            async with parent.session as box:
                twin = await cast("HostedSandbox", box).fork_with(config)
            try:
                session = await self._table.open(config, callbacks, twin)
            except BaseException:
                await twin.destroy()
                raise
        now = clock.now()
        facts = SessionFacts(
            id=new_id("ses"),
            tenant=principal.tenant,
            key=principal.key,
            created=now,
            parent=parent.id,
            name=name,
            idle_seconds=parent.facts.idle_seconds,
            max_seconds=max(1.0, parent.expires - now),
            metadata=dict(parent.facts.metadata),
            context_id=parent.facts.context_id,
        )
        child = HostedSession(principal, session, callbacks, facts, parent=parent)
        child.held = held
        parent.children.append(child.id)
        return self._keep(child)

    async def adopt(
        self,
        principal: Principal,
        box: BaseSandbox,
        config: SandboxConfig,
        callbacks: ClientCallbacks,
        record: SessionRecord,
    ) -> HostedSession:
        """Go on with a session that another service opened; `box` has claimed it."""
        session = await self._table.open(config, callbacks, box)
        self._quotas.add_session(principal)
        await self._count_elsewhere(principal.key, 1)
        shared = msgspec.structs.asdict(msgspec.convert(record, SharedFacts, from_attributes=True))
        # Its life begins again: the clock of the service that opened it may be another one.
        facts = SessionFacts(**shared, key=principal.key, created=clock.now())
        hosted = HostedSession(principal, session, callbacks, facts)
        hosted.record = record
        return self._keep(hosted)

    def get(self, principal: Principal, ident: str) -> HostedSession:
        """Return a session of the tenant; 404 if it has none of that id, 410 if it was lost."""
        session = self._sessions.get(ident)
        if session is not None and session.tenant == principal.tenant:
            return session
        query = "SELECT reason FROM sessions WHERE id = ? AND tenant = ?"
        row = self._database.one(query, ident, principal.tenant)
        if row is not None and row["reason"] not in (None, "deleted"):
            text = f"the session has ended ({row['reason']}): open a new one"
            raise SandboxLostError(text, retryable=False)
        raise not_found("session")

    def find(self, ident: str) -> HostedSession | None:
        """Return a session of any tenant, for a caller that has checked a token of this session."""
        return self._sessions.get(ident)

    def of(self, principal: Principal, state: str = "") -> list[HostedSession]:
        """Return the tenant's sessions, oldest first; with a state, those that are in it."""
        own = [
            session
            for session in self._sessions.values()
            if session.tenant == principal.tenant and state in ("", session.state)
        ]
        return sorted(own, key=_age)  # those restored come in any order

    def tree(self, session: HostedSession) -> ForkTree:
        """Return the fork tree that a session is in."""
        return _tree(self._database, self._sessions, session)

    def page(self, principal: Principal, limit: int, after: str, state: str) -> SessionPage:
        """Return some sessions of the tenant, and where the next page begins."""
        limit = max(1, min(limit, MAX_PAGE))
        query = "SELECT created FROM sessions WHERE id = ? AND tenant = ?"
        row = self._database.one(query, after, principal.tenant) if after else None
        if after and row is None:
            raise Problem(400, "invalid", "the cursor is not one of a page that was given")
        # The session that the cursor names may have ended meanwhile.
        since = (-1.0, "") if row is None else (row["created"], after)
        left = [session for session in self.of(principal, state) if _age(session) > since]
        items = [session.describe() for session in left[:limit]]
        return SessionPage(items, items[-1].id if len(left) > limit else None)

    def change(self, session: HostedSession, life: Life) -> None:
        """Set how long a session lives, and its metadata."""
        self._check_life(life)
        facts = session.facts
        facts.idle_seconds = life.idle_seconds or facts.idle_seconds
        facts.max_seconds = life.max_seconds or facts.max_seconds
        facts.metadata = facts.metadata if life.metadata is None else life.metadata

    async def restart(self, session: HostedSession, config: SandboxConfig) -> None:
        """Throw a session's state away and start it afresh."""
        before = session.session.config
        await session.session.restart(config)
        if config.context is not before.context:
            close(before)
        session.marks.clear()
        session.touch()

    async def end(self, session: HostedSession, reason: str = "deleted") -> None:
        """End a session and free its resources; if another service has it, it goes on there."""
        if session.over:
            return
        self._drop(session, reason)
        await self.charge(session)
        await self._count_elsewhere(session.key, -1)
        if self._fleet is None or await self._fleet.forget(session):
            await self._table.end(session.session)
        else:
            await self._table.leave(session.session, reason)
        close(session.session.config)

    async def leave(self, session: HostedSession, reason: str) -> None:
        """Part from a session that another service has taken over, or may."""
        if not session.over:
            self._drop(session, reason)
            await self._count_elsewhere(session.key, -1)
            await self._table.leave(session.session, reason)
            close(session.session.config)

    async def take_up(self, principal: Principal, session: HostedSession) -> None:
        """Go on with a session that an earlier process of this service saved."""
        self._quotas.add_session(principal)
        await self._count_elsewhere(principal.key, 1)
        session.touch()
        self._keep(session)

    async def stop(self, session: HostedSession, reason: str) -> None:
        """End a session because the service stops; without a reason it was saved, and goes on."""
        if reason:
            await self.end(session, STOPPED)
            self.forget(session.id, reason)
        else:
            self._put_away(session)

    def forget(self, ident: str, reason: str) -> None:
        """Note why a session of this process, or of an earlier one, does not go on."""
        query = "UPDATE sessions SET ended = ?, reason = ? WHERE id = ?"
        with contextlib.suppress(Exception):  # a full disk must not keep a guest alive
            self._database.write(query, clock.now(), reason, ident)
            self._database.write("DELETE FROM saved_sessions WHERE id = ?", ident)

    async def end_all(self, reason: str) -> None:
        """End every session; those that other services can take over go on."""
        for session in list(self._sessions.values()):
            await (self.end if session.record is None else self.leave)(session, reason)

    def _drop(self, session: HostedSession, reason: str) -> None:
        self._put_away(session)
        parent = self._sessions.get(session.facts.parent or "")
        if parent is not None and session.id in parent.children:
            parent.children.remove(session.id)
        session.history.release()
        if session.held is not None:
            session.held.release()
        self._quotas.close_session(session.key)
        self._streams.end_session(session.id, reason)
        self._metrics.closed.labels(reason).inc()
        self.forget(session.id, reason)

    def _put_away(self, session: HostedSession) -> None:
        """Forget a session that has ended, or goes on elsewhere."""
        session.over = True
        if session.meter is not None:
            self._cpu.remove(session.meter)
        self._sessions.pop(session.id, None)

    async def sweep(self) -> None:
        """End sessions whose time is over; a running cell counts as use. Measure the others."""
        for session in list(self._sessions.values()):
            try:
                await self._look_after(session)
            except Exception:  # noqa: BLE001 - the others have to end all the same
                _LOG.exception("looking after the session %s failed", session.id)

    async def end_expired(self) -> None:
        """End sessions whose longest time is over."""
        now = clock.now()
        for session in list(self._sessions.values()):
            if now > session.expires and not session.over:
                await self.end(session, "expired")

    async def _look_after(self, session: HostedSession) -> None:
        now = clock.now()
        if not session.session.idle:
            session.touch()
        if now > session.expires:
            await self.end(session, "expired")
        elif now > session.idle_until:
            await self.end(session, "idle for too long")
        elif session.used > session.disk_measured:
            await session.measure_disk()

    @contextlib.asynccontextmanager
    async def _counted(self, principal: Principal) -> AsyncIterator[None]:
        """Count a session of a key, here and in all services, unless it cannot be opened."""
        self._quotas.open_session(principal)
        try:
            if self._replicas is not None:
                await self._replicas.count("sessions", principal, principal.quota.sessions)
            try:
                yield
            except BaseException:
                await self._count_elsewhere(principal.key, -1)
                raise
        except BaseException:
            self._quotas.close_session(principal.key)
            raise

    async def _count_elsewhere(self, key: str, by: int) -> None:
        """Tell the other services that a key has more or fewer sessions here."""
        if self._replicas is not None:
            await self._replicas.adjust("sessions", key, by)

    async def charge(
        self, session: HostedSession, principal: Principal | None = None, total: float = 0.0
    ) -> None:
        """Count the CPU time that a session used since the last time; without a key, to its own."""
        if session.meter is not None:
            await self._cpu.charge(session.meter, principal, total)

    def _keep(self, session: HostedSession) -> HostedSession:
        session.budget = self._budget
        session.history.hold(self._budget.admit(session.tenant, 0, "the cells of a session"))
        self._sessions[session.id] = session

        async def stop(problem: Problem) -> None:
            await self.end(session, problem.detail)

        session.meter = CpuMeter(session.principal, lambda: session.session.box, stop)
        self._cpu.add(session.meter)
        row = (session.id, session.tenant, session.facts.parent, session.facts.created)
        query = "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, NULL, NULL)"
        self._database.write(query, *row)
        return session

    def _check_life(self, life: Life) -> None:
        for name in ("idle_seconds", "max_seconds"):
            value, most = getattr(life, name), getattr(self._settings, name)
            if value is not None and not 0 < value <= most:
                raise Problem(400, "invalid", f"{name} must be positive and at most {most:g}")


def _tree(database: Database, live: dict[str, HostedSession], session: HostedSession) -> ForkTree:
    """Return the sessions and checkpoints that a session shares its first ancestor with.

    Sessions that have ended are in it while the database remembers them.
    """
    given = {"id": session.id, "tenant": session.tenant, "most": MAX_NODES + 1}
    rows = database.all(_FAMILY, given)
    nodes: list[TreeNode] = []
    for row in rows[:MAX_NODES]:
        hosted = live.get(row["id"])
        nodes += [_ended(row)] if hosted is None else _running(hosted, session)
    root = nodes[0].id if nodes else session.id
    return ForkTree(root, nodes, len(rows) > MAX_NODES)


def _running(hosted: HostedSession, asked: HostedSession) -> list[TreeNode]:
    """Return a session and its checkpoints."""
    facts = hosted.facts
    node = TreeNode(
        id=hosted.id,
        kind="session",
        name=facts.name or facts.metadata.get("name", ""),
        parent=facts.parent,
        created_at=facts.created,
        state=hosted.state,
        memory_bytes=hosted.usage().memory_bytes,
        executions=facts.executions,
        current=hosted is asked,
    )
    marks = [
        TreeNode(
            id=mark.id,
            kind="mark",
            name=mark.name,
            parent=hosted.id,
            created_at=mark.created_at,
            state="kept",
            rolled_back=mark.id == hosted.rolled_back,
        )
        for mark in hosted.marks.values()
    ]
    return [node, *marks]


def _ended(row: sqlite3.Row) -> TreeNode:
    return TreeNode(
        id=row["id"],
        kind="session",
        parent=row["parent"],
        created_at=row["created"],
        ended_at=row["ended"],
        reason=row["reason"],
        state="ended",
    )
