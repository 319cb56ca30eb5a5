"""Handlers for operators: the sessions of every tenant, and the record of what operators did.

SECURITY: these routes need the scope admin, and look up no session under a tenant. What they
change is written to the audit log before it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, structs

from atoll.service.access.audit import AuditPage
from atoll.service.core.tenant_session import SessionInfo
from atoll.service.http.problems import not_found

if TYPE_CHECKING:
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import ApiRequest

MAX_PAGE = 200


class TenantSession(SessionInfo, kw_only=True):
    """A session, whose it is, and the key that opened it."""

    tenant: str
    key: str


class TenantSessionPage(Struct):
    """Some sessions, and how many there are."""

    items: list[TenantSession]
    total: int


async def list_sessions(call: ApiRequest) -> TenantSessionPage:
    """List the sessions of every tenant, or of one, the oldest first."""
    tenant, state = call.query("tenant"), call.query("state")
    chosen = [
        session
        for session in call.service.sessions.all()
        if tenant in ("", session.tenant) and state in ("", session.state)
    ]
    chosen.sort(key=lambda session: (session.facts.created, session.id))
    first = call.number("offset", 0)
    limit = max(1, min(call.number("limit", MAX_PAGE), MAX_PAGE))
    return TenantSessionPage([_shown(one) for one in chosen[first : first + limit]], len(chosen))


async def show_session(call: ApiRequest) -> TenantSession:
    """Describe a session of any tenant."""
    session = _session(call)
    await session.measure_disk()
    return _shown(session)


async def end_session(call: ApiRequest) -> None:
    """End a session of any tenant; its clients are told that an operator did."""
    session = _session(call)
    call.audit("session ended", session.id, of=session.tenant)
    await call.service.sessions.end(session, "ended by an operator")


async def pause_session(call: ApiRequest) -> TenantSession:
    """Freeze a session of any tenant; its next call thaws it."""
    session = _session(call)
    call.audit("session paused", session.id, of=session.tenant)
    await session.session.pause()
    return _shown(session)


async def audit(call: ApiRequest) -> AuditPage:
    """List what operators did, the newest first; `search` is a text that entries contain."""
    return call.service.audit.page(
        call.query("search"), call.number("limit", 100), call.number("before", 0)
    )


def _session(call: ApiRequest) -> HostedSession:
    session = call.service.sessions.find(call.path["session"])
    if session is None:
        raise not_found("session")
    return session


def _shown(session: HostedSession) -> TenantSession:
    facts = structs.asdict(session.describe())
    return TenantSession(**facts, tenant=session.tenant, key=session.key)
