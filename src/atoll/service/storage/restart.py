"""Sessions that outlive the process: saved when the service stops, there again when it starts.

    stop:   sandbox ── state ──▶ store;  what the tenant knows of it ──▶ ledger
    start:  ledger ──▶ a session that is saved to disk, as one that was idle for long is;
            the next request restores its sandbox

A session is saved only if its state holds all of it. The others end, and the log and the ledger
say why.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.errors import AtollError, StateError
from atoll.sandbox.wire import options
from atoll.service import clock
from atoll.service.access.keys import Principal
from atoll.service.core.contexts import as_json
from atoll.service.core.sessions import STOPPED
from atoll.service.core.tenant_session import BoxFacts, HostedSession
from atoll.service.http.bodies import ContextOf
from atoll.service.http.problems import Problem
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from atoll.service.core.service import Service
    from atoll.state.store import SqliteStateStore

SAVE_SECONDS = 20.0
"""In which all sessions have to be saved."""
AT_ONE_TIME = 4
MOST_NAMED = 50
_SAME = ("id", "tenant", "key", "created", "parent", "name", "idle_seconds", "max_seconds",
         "metadata", "context_id", "executions", "cpu_seconds", "memory_bytes")  # fmt: skip
_UNSAVED = "it could not be saved"
_LOG = logging.getLogger("atoll.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSession:
    """All that is needed to go on with a session whose state is in the store."""

    id: str
    tenant: str
    key: str
    created: float
    parent: str | None
    name: str
    idle_seconds: float
    max_seconds: float
    metadata: dict[str, str]
    context_id: str | None
    executions: int
    cpu_seconds: float
    memory_bytes: int
    ident: str
    """The name of its state in the store; with `/context`, of a context that was not uploaded,
    and with `/cells`, of the cells that were run."""
    config: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, hosted: HostedSession) -> SavedSession:
        """Return what is to be kept of a session."""
        same = {name: getattr(hosted, name) for name in _SAME}
        session = hosted.session
        return cls(**same, ident=session.ident, config=options.to_wire(session.config),
                   facts=dataclasses.asdict(hosted.facts))  # fmt: skip


class CarryOver:
    """Saves and restores the sessions of a service."""

    def __init__(self, service: Service, store: SqliteStateStore) -> None:
        self._service, self._store = service, store

    async def save(self) -> None:
        """Save what can be saved; end the rest, and say which that is and why."""
        sessions = [one for one in self._service.sessions.all() if one.record is None]
        limit, lost = asyncio.Semaphore(AT_ONE_TIME), dict.fromkeys(sessions, f"{_UNSAVED} in time")

        async def save(hosted: HostedSession) -> None:
            async with limit:
                lost[hosted] = await self._try(hosted)

        tasks = [asyncio.ensure_future(save(one)) for one in sessions]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=SAVE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for hosted, why in lost.items():
            await self._service.sessions.stop(hosted, f"{STOPPED}: {why}" if why else "")
        _tell({one.id: why for one, why in lost.items()})

    async def _try(self, hosted: HostedSession) -> str:
        """Save a session; return why that cannot be, an empty text if it could."""
        if not hosted.comes_back:
            return f"{_UNSAVED} because it is a Jupyter kernel"
        try:
            if hosted.session.live and not await hosted.processes.forget_ended():
                return f"{_UNSAVED} because processes run beside its cells"
            await self._put_context(hosted)
            await hosted.session.save_to_disk()
            await self._put_cells(hosted)
            record = json.dumps(dataclasses.asdict(SavedSession.of(hosted)))
            query = "INSERT OR REPLACE INTO saved_sessions VALUES (?, ?)"
            self._service.ledger.write(query, hosted.id, record)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the other sessions are saved
            text = str(exc) if isinstance(exc, AtollError) else type(exc).__name__
            return text if text.startswith(_UNSAVED) else f"{_UNSAVED}: {text}"
        return ""

    async def _put_context(self, hosted: HostedSession) -> None:
        """Keep a context that came with the request: an uploaded one is kept anyway."""
        context = hosted.session.config.context
        if context is None or hosted.context_id is not None:
            return
        data = await asyncio.to_thread(as_json, context)
        await asyncio.to_thread(self._store.put, f"{hosted.session.ident}/context", data)

    async def _put_cells(self, hosted: HostedSession) -> None:
        """Keep what ran. A store that is full has the state at least, which is worth more."""
        data, name = hosted.history.to_bytes(), f"{hosted.session.ident}/cells"
        try:
            await asyncio.to_thread(self._store.put, name, data)
        except StateError as exc:
            _LOG.warning("session %s goes on without its cells: %s", hosted.id, exc)

    async def restore(self) -> int:
        """Take up the sessions that were saved; return how many there are."""
        rows = self._service.ledger.all("SELECT * FROM saved_sessions")
        found = {row["id"]: _read(row["record"]) for row in rows}
        known = [one.ident for one in found.values() if one is not None]
        kept = {f"{one}{part}" for one in known for part in ("", "/context", "/cells")}
        stored = self._store.keep_only(kept)
        restored = 0
        for ident, saved in found.items():
            why = "its record is damaged"
            if saved is not None:
                why = await self._restore(saved) if saved.ident in stored else "lost"
            restored += not why
            if why:
                self._service.sessions.forget(ident, why)
        self._name_children()
        return restored

    async def _restore(self, saved: SavedSession) -> str:
        """Take up a session; return why that cannot be, an empty text if it could."""
        if clock.now() > saved.created + saved.max_seconds:
            return "expired"
        service, principal = self._service, self._principal(saved)
        try:
            plain = dataclasses.replace(options.from_wire(saved.config), python=None)
            config, callbacks = service.prepare(plain, saved.config)
            given = await self._context_of(saved)
            config = await service.contexts.give(principal, config, callbacks, given)
            facts = BoxFacts(**saved.facts)
        except (AtollError, Problem, TypeError) as exc:
            return f"it could not be restored: {exc}"[:300]
        session = service.table.restore(saved.ident, config, callbacks)
        hosted = HostedSession(principal, session, callbacks, facts=facts)
        for name in _SAME:
            setattr(hosted, name, getattr(saved, name))
        await self._give_cells(hosted)
        await service.sessions.take_up(principal, hosted)
        return ""

    def _principal(self, saved: SavedSession) -> Principal:
        """Return the key of a session with its quota; without one if it is not valid any more."""
        with contextlib.suppress(Problem):
            return self._service.keys.of_id(saved.key)
        return Principal(key=saved.key, tenant=saved.tenant)

    async def _context_of(self, saved: SavedSession) -> ContextOf | None:
        if saved.context_id is not None:
            return ContextOf(id=saved.context_id)
        data = await asyncio.to_thread(self._store.get, f"{saved.ident}/context")
        return None if data is None else ContextOf(value=json.loads(data))

    async def _give_cells(self, hosted: HostedSession) -> None:
        data = await asyncio.to_thread(self._store.get, f"{hosted.session.ident}/cells")
        try:
            if data is not None:
                hosted.history.restore(data)
        except (ValueError, TypeError, KeyError) as exc:
            _LOG.warning("session %s goes on without its cells: %s", hosted.id, exc)

    def _name_children(self) -> None:
        by_id = {one.id: one for one in self._service.sessions.all()}
        for one in by_id.values():
            if one.parent in by_id:
                by_id[one.parent].children.append(one.id)


def _read(record: str) -> SavedSession | None:
    """Return a record; None if it is damaged, or of another version of Atoll."""
    try:
        return SavedSession(**json.loads(record))
    except (ValueError, TypeError):
        return None


def _tell(lost: dict[str, str]) -> None:
    """Log how many sessions come back, and name the others."""
    if saved := sum(not why for why in lost.values()):
        _LOG.info("saved %s, to go on when the service starts again", counted(saved, "sessions"))
    named = [(ident, why) for ident, why in lost.items() if why]
    for ident, why in named[:MOST_NAMED]:
        _LOG.warning("session %s has ended: %s", ident, why)
    if len(named) > MOST_NAMED:
        more = counted(len(named) - MOST_NAMED, "more sessions")
        _LOG.warning("%s could not be saved and ended", more)
