"""Which service has which session of a fleet, in the fleet's own store.

    service/sessions/<id>/000001   opened by one service
    service/sessions/<id>/000002   taken over by another: the first one is gone

An entry is created and never overwritten, so of two services that take a session over at one time
one wins. It decides where requests go; who may write a session's state is decided by its log.
SECURITY: an id comes out of a request: it is checked before it becomes a part of a name.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from atoll.errors import AtollError, FleetError
from atoll.fleet.expiry import listed_by
from atoll.fleet.log import SessionLog
from atoll.service.core.contexts import as_json
from atoll.service.core.tenant_session import SharedFacts
from atoll.service.http.problems import encode

if TYPE_CHECKING:
    from atoll.fleet.store import Store

_SESSION = re.compile(r"ses_[0-9A-Za-z_-]{21}\Z")
_DIGITS = 6
_LOG = logging.getLogger("atoll.service")


class SessionRecord(SharedFacts, kw_only=True):
    """All that a service needs to go on with a session that another one opened."""

    number: int
    home: str
    """The address of the service that has it."""
    fleet_session: str
    """Its name in the fleet: a secret of the fleet."""
    config: dict[str, Any]
    context: str | None = None
    """The object in the store that has the context that came with the request."""

    @classmethod
    def from_bytes(cls, data: bytes) -> SessionRecord:
        """Return the record; FleetError if it is damaged."""
        try:
            return msgspec.convert(json.loads(data), cls)
        except (ValueError, TypeError) as exc:
            raise FleetError(f"a session's record is damaged: {exc!r:.200}") from None


class Directory:
    """The records of all services in front of one fleet."""

    def __init__(self, store: Store, home: str) -> None:
        self.store, self.home = store, home.rstrip("/")

    async def put_context(self, ident: str, context: Any) -> str:
        """Keep a context that came with a request; return the object's name."""
        name = f"service/contexts/{ident}/{secrets.token_hex(8)}"
        data = await asyncio.to_thread(as_json, context)
        await self.store.create(name, data)
        return name

    async def context(self, name: str) -> Any:
        """Return a context as it was encoded for a request; FleetError if it is gone."""
        data = await self.store.get(name)
        if data is None:
            raise FleetError(f"the store has lost {name}")
        return await asyncio.to_thread(json.loads, data)

    async def find(self, ident: str) -> SessionRecord | None:
        """Return the newest record of a session, or None."""
        if not _SESSION.match(ident):
            return None
        names = await self.store.names(_folder(ident))
        data = await self.store.get(names[-1]) if names else None
        return None if data is None else SessionRecord.from_bytes(data)

    async def write(self, record: SessionRecord) -> bool:
        """Write a record; return False if its number is taken: another service was faster."""
        return await self.store.create(_name(record), encode(record))

    async def take(self, record: SessionRecord) -> SessionRecord | None:
        """Note that this service has the session from now on; None if another was faster."""
        mine = msgspec.structs.replace(record, number=record.number + 1, home=self.home)
        return mine if await self.write(mine) else None

    async def remove(self, ident: str) -> bool:
        """Forget a session that has ended; return False if another service has it."""
        place = await self.find(ident)
        if place is None:
            return True
        if place.home != self.home:
            return False
        await self._delete(ident)
        return True

    async def sweep(self, before: float) -> int:
        """Forget sessions that have ended and were written before; return how many."""
        records = listed_by(await self.store.times("service/sessions"), 2)
        old = [ident for ident, times in records.items() if max(times.values()) < before]
        return sum([await self._forget_ended(ident) for ident in old])

    async def _forget_ended(self, ident: str) -> bool:
        try:
            place = await self.find(ident)
            if place is None or not await SessionLog(self.store, place.fleet_session).has_ended():
                return False
            await self._delete(ident)
        except AtollError as exc:
            _LOG.warning("the record of an expired session stays in the store: %s", exc)
            return False
        return True

    def close(self) -> None:
        """Wait for running work."""
        self.store.close()

    async def _delete(self, ident: str) -> None:
        names = await self.store.names(f"service/contexts/{ident}")
        await self.store.delete(*names, *await self.store.names(_folder(ident)))


def _folder(ident: str) -> str:
    return f"service/sessions/{ident}"


def _name(record: SessionRecord) -> str:
    return f"{_folder(record.id)}/{record.number:0{_DIGITS}d}"
