"""The sessions of all tenants: opened, found, forked, ended, expired.

Each is a session of the daemon's own table, which saves idle ones to disk when memory is short.
SECURITY: a session is looked up under its tenant, and forks stay with it.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, cast

from atoll.errors import SandboxLostError
from atoll.sandbox.signatures import DESCRIPTION
from atoll.service import clock
from atoll.service.access.cpu import CpuMeter
from atoll.service.core import lineage
from atoll.service.core.contexts import close
from atoll.service.core.tenant_session import HostedSession
from atoll.service.http.problems import Problem, encode, not_found

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from atoll.config import SandboxConfig
    from atoll.hosting.client_callbacks import ClientCallbacks
    from atoll.hosting.session_table import SessionTable
    from atoll.hosting.sessions import ForksWith
    from atoll.sandbox.base import BaseSandbox
    from atoll.service.access.admission import Budget
    from atoll.service.access.cpu import CpuMeters
    from atoll.service.access.keys import Principal
    from atoll.service.access.quotas import Quotas
    from atoll.service.cluster.directory import SessionRecord
    from atoll.service.cluster.fleet import FleetSandboxes
    from atoll.service.cluster.replicas import Replicas
    from atoll.service.http.bodies import Life
    from atoll.service.http.streams import Streams
    from atoll.service.settings import ServiceSettings
    from atoll.service.storage.database import Ledger

MAX_PAGE = 200
OVERHEAD = 4 << 10
"""What a session takes in the service besides its configuration and its cells, about."""
_CONFIG = "the configuration of a session"
STOPPED = "the service was stopped"
_LOG = logging.getLogger("atoll.service")


def config_size(config: SandboxConfig) -> int:
    """Return what a session keeps of its configuration, in bytes of JSON."""
    tools = [vars(one).get(DESCRIPTION) for one in config.tools.values()]
    return OVERHEAD + len(encode([dict(config.policy.env), config.argv, tools]))


class Sessions:
    """Finds sessions by id and tenant."""

    def __init__(
        self,
        table: SessionTable,
        ledger: Ledger,
        quotas: Quotas,
        settings: ServiceSettings,
        budget: Budget,
    ) -> None:
        self._budget = budget
        self._table, self._ledger, self._quotas, self._settings = table, ledger, quotas, settings
        self._sessions: dict[str, HostedSession] = {}
        self.fleet: FleetSandboxes | None = None
        """Where the sandboxes are, if they are not on this machine."""
        self.replicas: Replicas | None = None
        """The other services, if a Redis is shared with them."""
        self.streams: Streams | None = None
        """The streams that end with their sessions."""
        self.cpu: CpuMeters | None = None
        """Counts the CPU time that sessions use."""
        self.on_end: Callable[[str], None] = lambda _reason: None
        """Is called with the reason of each end."""

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
        self, principal: Principal, config: SandboxConfig, callbacks: ClientCallbacks, life: Life
    ) -> HostedSession:
        """Start a session."""
        self._check_life(life)
        self._quotas.require_cpu(principal)
        held = self._budget.admit(principal, config_size(config), _CONFIG)
        async with self._counted(principal):
            session = await self._table.open(config, callbacks)
        hosted = HostedSession(principal, session, callbacks)
        hosted.held = held
        return self._add(hosted, life)

    async def fork(self, principal: Principal, parent: HostedSession, name: str) -> HostedSession:
        """Start a live clone of a session."""
        self._quotas.require_cpu(principal)
        held = self._budget.admit(principal, config_size(parent.session.config), _CONFIG)
        async with self._counted(principal):
            callbacks, config = parent.session.clone_config()
            async with parent.session.in_turn() as box:
                twin = await cast("ForksWith", box).fork_with(config)
            try:
                session = await self._table.open(config, callbacks, twin)
            except BaseException:
                await twin.destroy()
                raise
        child = HostedSession(principal, session, callbacks, parent)
        child.held = held
        child.name, child.metadata = name, dict(parent.metadata)
        child.idle_seconds, child.context_id = parent.idle_seconds, parent.context_id
        child.max_seconds = max(1.0, parent.expires - child.created)
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
        hosted = HostedSession(principal, session, callbacks)
        # Its life begins again: the clock of the service that opened it may be another one.
        for name in ("id", "idle_seconds", "max_seconds", "name", "parent", "metadata",
                     "context_id"):  # fmt: skip
            setattr(hosted, name, getattr(record, name))
        hosted.record = record
        return self._keep(hosted)

    def get(self, principal: Principal, ident: str) -> HostedSession:
        """Return a session of the tenant; 404 if it has no such one, 410 if it was lost."""
        found = self._sessions.get(ident)
        if found is not None and found.tenant == principal.tenant:
            return found
        query = "SELECT reason FROM sessions WHERE id = ? AND tenant = ?"
        row = self._ledger.one(query, ident, principal.tenant)
        if row is not None and row["reason"] not in (None, "deleted"):
            text = f"the session has ended ({row['reason']}): open a new one"
            raise SandboxLostError(text, retryable=False)
        raise not_found("session")

    def find(self, ident: str) -> HostedSession | None:
        """Return a session of any tenant, for a caller that has checked a token of this session."""
        return self._sessions.get(ident)

    def of(self, principal: Principal, state: str = "") -> list[HostedSession]:
        """Return the tenant's sessions, oldest first; with a state, those that are in it."""
        own = [one for one in self._sessions.values() if one.tenant == principal.tenant]
        own.sort(key=lambda one: (one.created, one.id))  # those restored come in any order
        return [one for one in own if one.state == state] if state else own

    def tree(self, session: HostedSession) -> dict[str, Any]:
        """Return the fork tree that a session is in."""
        return lineage.tree(self._ledger, self._sessions, session)

    def page(self, principal: Principal, limit: int, after: str, state: str) -> dict[str, Any]:
        """Return some sessions of the tenant, and where the next page begins."""
        limit = max(1, min(limit, MAX_PAGE))
        query = "SELECT created FROM sessions WHERE id = ? AND tenant = ?"
        row = self._ledger.one(query, after, principal.tenant) if after else None
        if after and row is None:
            raise Problem(400, "invalid", "the cursor is not one of a page that was given")
        # The session that the cursor names may have ended meanwhile.
        since = (-1.0, "") if row is None else (row["created"], after)
        left = [one for one in self.of(principal, state) if (one.created, one.id) > since]
        items = [one.describe() for one in left[:limit]]
        return {"items": items, "next_cursor": items[-1]["id"] if len(left) > limit else None}

    def change(self, session: HostedSession, life: Life) -> None:
        """Set how long a session lives, and its metadata."""
        self._check_life(life)
        session.idle_seconds = life.idle_seconds or session.idle_seconds
        session.max_seconds = life.max_seconds or session.max_seconds
        session.metadata = session.metadata if life.metadata is None else life.metadata

    async def restart(self, session: HostedSession, config: SandboxConfig) -> None:
        """Throw a session's state away and start it afresh."""
        before = session.session.config
        await session.session.restart(config)
        if config.context is not before.context:
            close(before)
        session.marks.clear()
        session.touch()

    async def end(self, session: HostedSession, reason: str = "deleted") -> None:
        """End a session, and free everything it used; one that others have goes on there."""
        if session.over:
            return
        self._drop(session, reason)
        await self.charge(session)
        await self._count_elsewhere(session.key, -1)
        if self.fleet is None or await self.fleet.forget(session):
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
            session.over = True
            self._forget_meter(session)
            self._sessions.pop(session.id, None)

    def forget(self, ident: str, reason: str) -> None:
        """Note why a session of this process, or of an earlier one, does not go on."""
        query = "UPDATE sessions SET ended = ?, reason = ? WHERE id = ?"
        with contextlib.suppress(Exception):  # a full disk must not keep a guest alive
            self._ledger.write(query, clock.now(), reason, ident)
            self._ledger.write("DELETE FROM saved_sessions WHERE id = ?", ident)

    async def end_all(self, reason: str) -> None:
        """End every session; those that other services can take over go on."""
        for session in list(self._sessions.values()):
            await (self.end if session.record is None else self.leave)(session, reason)

    def _drop(self, session: HostedSession, reason: str) -> None:
        session.over = True
        self._forget_meter(session)
        self._sessions.pop(session.id, None)
        parent = self._sessions.get(session.parent or "")
        if parent is not None and session.id in parent.children:
            parent.children.remove(session.id)
        session.history.release()
        if session.held is not None:
            session.held.release()
        self._quotas.close_session(session.key)
        if self.streams is not None:
            self.streams.end_session(session.id, reason)
        self.on_end(reason)
        self.forget(session.id, reason)

    async def sweep(self) -> None:
        """End sessions whose time is over; a running cell counts as use. Measure the others."""
        for session in list(self._sessions.values()):
            try:
                await self._look_after(session)
            except Exception:  # noqa: BLE001 - the others have to end all the same
                _LOG.exception("looking after the session %s failed", session.id)

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
            if self.replicas is not None:
                await self.replicas.count("sessions", principal, principal.quota.sessions)
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
        if self.replicas is not None:
            await self.replicas.adjust("sessions", key, by)

    def _add(self, session: HostedSession, life: Life) -> HostedSession:
        session.idle_seconds = life.idle_seconds or self._settings.idle_seconds
        session.max_seconds = life.max_seconds or self._settings.max_seconds
        session.metadata = life.metadata or {}
        return self._keep(session)

    async def charge(
        self, session: HostedSession, principal: Principal | None = None, total: float = 0.0
    ) -> None:
        """Count the CPU time that a session used since the last time; without a key, to its own."""
        if self.cpu is not None and session.meter is not None:
            await self.cpu.charge(session.meter, principal, total)

    def _meter(self, session: HostedSession) -> None:
        async def stop(problem: Problem) -> None:
            await self.end(session, problem.detail)

        if self.cpu is not None:
            session.meter = CpuMeter(session.principal, lambda: session.session.box, stop)
            self.cpu.add(session.meter)

    def _forget_meter(self, session: HostedSession) -> None:
        if self.cpu is not None and session.meter is not None:
            self.cpu.remove(session.meter)

    def _keep(self, session: HostedSession) -> HostedSession:
        session.budget = self._budget
        session.history.hold(self._budget.admit(session.tenant, 0, "the cells of a session"))
        self._sessions[session.id] = session
        self._meter(session)
        row = (session.id, session.tenant, session.parent, session.created)
        query = "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, NULL, NULL)"
        self._ledger.write(query, *row)
        return session

    def _check_life(self, life: Life) -> None:
        for name in ("idle_seconds", "max_seconds"):
            value, most = getattr(life, name), getattr(self._settings, name)
            if value is not None and not 0 < value <= most:
                raise Problem(400, "invalid", f"{name} must be positive and at most {most:g}")
