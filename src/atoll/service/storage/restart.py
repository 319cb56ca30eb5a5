"""Sessions that outlive the process: saved when the service stops, there again when it starts.

    stop:   sandbox ── state ──▶ store;  what the tenant knows of it ──▶ database
    start:  database ──▶ a session that is saved to disk, as one that was idle for long is;
            the next request restores its sandbox

A session is saved only if its state holds all of it. The others end, and the log and the database
say why.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from atoll.errors import AtollError, StateError
from atoll.sandbox.wire import options
from atoll.service import clock
from atoll.service.access.keys import Principal
from atoll.service.core.contexts import as_json
from atoll.service.core.sessions import STOPPED
from atoll.service.core.tenant_session import BoxFacts, HostedSession, SessionFacts
from atoll.service.http.bodies import ContextOf
from atoll.service.http.problems import Problem, encode
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from atoll.service.core.service import Service
    from atoll.state.store import SqliteStateStore

SAVE_SECONDS = 20.0
"""In which all sessions have to be saved."""
AT_ONE_TIME = 4
MAX_NAMED = 50
_UNSAVED = "it could not be saved"
_LOG = logging.getLogger("atoll.service")


class SavedSession(SessionFacts, kw_only=True):
    """All that is needed to go on with a session whose state is in the store."""

    ident: str
    """The name of its state in the store; with `/context`, of a context that was not uploaded,
    and with `/cells`, of the cells that were run."""
    config: dict[str, Any]
    facts: BoxFacts


class SavedSessions:
    """Saves the sessions of a service when it stops, and restores them when it starts."""

    def __init__(self, service: Service, store: SqliteStateStore) -> None:
        self._service, self._store = service, store

    async def save(self) -> None:
        """Save what can be saved; end the rest, and say which that is and why."""
        sessions = [hosted for hosted in self._service.sessions.all() if hosted.record is None]
        limit, lost = asyncio.Semaphore(AT_ONE_TIME), dict.fromkeys(sessions, f"{_UNSAVED} in time")

        async def save(hosted: HostedSession) -> None:
            async with limit:
                lost[hosted] = await self._try(hosted)

        tasks = [asyncio.ensure_future(save(hosted)) for hosted in sessions]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=SAVE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for hosted, why in lost.items():
            await self._service.sessions.stop(hosted, f"{STOPPED}: {why}" if why else "")
        _log_saved({hosted.id: why for hosted, why in lost.items()})

    async def _try(self, hosted: HostedSession) -> str:
        """Save a session; return why that cannot be, an empty text if it could."""
        if not hosted.comes_back:
            return f"{_UNSAVED} because it is a Jupyter kernel"
        try:
            if await hosted.processes.running():
                return f"{_UNSAVED} because processes run beside its cells"
            await self._put_context(hosted)
            await hosted.session.save_to_disk()
            await self._put_cells(hosted)
            known = {**msgspec.structs.asdict(hosted.facts), "cpu_seconds": hosted.cpu_seconds}
            config = options.to_wire(hosted.session.config)
            saved = SavedSession(
                **known, ident=hosted.session.ident, config=config, facts=hosted.box_facts
            )
            query = "INSERT OR REPLACE INTO saved_sessions VALUES (?, ?)"
            self._service.database.write(query, hosted.id, encode(saved).decode())
        except Exception as exc:  # noqa: BLE001 - whatever it is, the other sessions are saved
            text = str(exc) if isinstance(exc, AtollError) else type(exc).__name__
            return text if text.startswith(_UNSAVED) else f"{_UNSAVED}: {text}"
        return ""

    async def _put_context(self, hosted: HostedSession) -> None:
        """Keep a context that came with the request: an uploaded one is kept anyway."""
        context = hosted.session.config.context
        if context is None or hosted.facts.context_id is not None:
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
        rows = self._service.database.all("SELECT * FROM saved_sessions")
        records = {row["id"]: _read(row["record"]) for row in rows}
        known = [saved.ident for saved in records.values() if saved is not None]
        kept = {f"{ident}{part}" for ident in known for part in ("", "/context", "/cells")}
        stored = self._store.keep_only(kept)
        restored = 0
        for ident, saved in records.items():
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
            context = await self._context_of(saved)
            config, callbacks = await service.configure_again(principal, saved.config, context)
        except (AtollError, Problem) as exc:
            return f"it could not be restored: {exc}"[:300]
        session = service.table.restore(saved.ident, config, callbacks)
        facts = msgspec.convert(saved, SessionFacts, from_attributes=True)
        hosted = HostedSession(principal, session, callbacks, facts, box_facts=saved.facts)
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
        by_id = {hosted.id: hosted for hosted in self._service.sessions.all()}
        for hosted in by_id.values():
            if hosted.facts.parent in by_id:
                by_id[hosted.facts.parent].children.append(hosted.id)


def _read(record: str) -> SavedSession | None:
    """Return a record; None if it is damaged, or of another version of Atoll."""
    try:
        return msgspec.convert(json.loads(record), SavedSession)
    except (ValueError, TypeError):
        return None


def _log_saved(lost: dict[str, str]) -> None:
    """Log how many sessions come back, and name the others."""
    if saved := sum(not why for why in lost.values()):
        _LOG.info("saved %s, to go on when the service starts again", counted(saved, "sessions"))
    named = [(ident, why) for ident, why in lost.items() if why]
    for ident, why in named[:MAX_NAMED]:
        _LOG.warning("session %s has ended: %s", ident, why)
    if len(named) > MAX_NAMED:
        more = counted(len(named) - MAX_NAMED, "more sessions")
        _LOG.warning("%s could not be saved and ended", more)
