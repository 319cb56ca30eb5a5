"""API keys of all services in front of one fleet, in the fleet's own store.

    service/keys/<id>/key        made by one service; the others copy it into their databases
    service/keys/<id>/revoked    refused from now on

A request is checked against the service's own database, so it needs no store. The two are compared
every few seconds, and at once when a key comes that the database does not have.
SECURITY: a program that can write to the store must not make keys: each is signed with the key
that signs states, which all machines of a fleet have.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import time
from typing import TYPE_CHECKING, Any

from atoll.errors import FleetError
from atoll.service import clock
from atoll.state.key import state_key

if TYPE_CHECKING:
    import sqlite3

    from atoll.fleet.store import Store
    from atoll.service.storage.database import Database

PREFIX = "service/keys"
UNKNOWN_SECONDS = 1.0
"""How often a key that is not known makes the service look into the store."""
_NAME = re.compile(rf"{PREFIX}/[0-9a-f]{{8}}/(key|revoked)\Z")
_COLUMNS = ("id", "tenant", "name", "digest", "scopes", "quota", "created", "expires")
_LOG = logging.getLogger("atoll.service")


class SharedKeys:
    """Makes the keys of one service known to the others, and theirs to it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked = float("-inf")
        self._damaged: set[str] = set()
        self.problem = ""
        """Why the store was not compared with last time."""

    async def compare(self, database: Database) -> None:
        """Copy keys and revocations both ways; FleetError if the store cannot be used."""
        self._asked = time.monotonic()
        stored = {name for name in await self._store.names(PREFIX) if _NAME.match(name)}
        rows = {row["id"]: row for row in database.all("SELECT * FROM keys")}
        for row in rows.values():
            await self._publish(row, stored)
        for name in sorted(stored - self._damaged):  # a key comes before its revocation
            ident, kind = name.split("/")[2:]
            if kind == "key" and ident not in rows:
                await self._take(database, name)
            elif kind == "revoked" and (ident not in rows or rows[ident]["revoked"] is None):
                query = "UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL"
                database.write(query, clock.now(), ident)

    async def compare_now_and_then(self, database: Database) -> None:
        """Compare; a store that cannot be used is noted, and the keys stay as they are."""
        try:
            await self.compare(database)
        except FleetError as exc:
            if not self.problem:
                _LOG.warning("keys are not compared with other services: %s", exc)
            self.problem = f"keys of other services are not known: {exc}"
        else:
            self.problem = ""

    async def look_for(self, database: Database) -> bool:
        """Compare for a key that is not known, unless that was done a moment ago."""
        if time.monotonic() - self._asked < UNKNOWN_SECONDS:
            return False
        await self.compare_now_and_then(database)
        return True

    async def _publish(self, row: sqlite3.Row, stored: set[str]) -> None:
        folder = f"{PREFIX}/{row['id']}"
        if f"{folder}/key" not in stored:
            await self._store.create(f"{folder}/key", _sign(row))
        if row["revoked"] is not None and f"{folder}/revoked" not in stored:
            await self._store.create(f"{folder}/revoked", b"")

    async def _take(self, database: Database, name: str) -> None:
        row = _read(await self._store.get(name) or b"")
        if row is None or row["id"] != name.split("/")[2]:
            self._damaged.add(name)
            _LOG.warning("%s is not a key of this fleet, or its machine has another key", name)
            return
        row["digest"] = bytes.fromhex(row["digest"])
        values = [row[column] for column in _COLUMNS]
        query = "INSERT OR IGNORE INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)"
        database.write(query, *values)


def _sign(row: sqlite3.Row) -> bytes:
    facts = {column: row[column] for column in _COLUMNS} | {"digest": row["digest"].hex()}
    body = json.dumps(facts).encode()
    return _signature(body) + b"\n" + body


def _read(data: bytes) -> dict[str, Any] | None:
    """Return what a service wrote; None if it is not signed with this fleet's key."""
    signature, _, body = data.partition(b"\n")
    if not hmac.compare_digest(signature, _signature(body)):
        return None
    result: dict[str, Any] = json.loads(body)
    return result


def _signature(body: bytes) -> bytes:
    return hmac.new(state_key(), b"atoll api key\n" + body, hashlib.sha256).hexdigest().encode()
