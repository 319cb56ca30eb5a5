"""Saved states, contexts and files: bytes by their SHA-256, rows of who has them till when."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from atoll.service import clock
from atoll.service.http.problems import encode, not_found
from atoll.service.ids import new_id

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator
    from pathlib import Path

    from atoll.service.access.keys import Principal
    from atoll.service.storage.blobs import Blobs
    from atoll.service.storage.database import Database
    from atoll.service.storage.stored import StoredBytes

_COLUMNS = ("id", "kind", "tenant", "digest", "size", "facts", "created", "expires")
_ID = re.compile(r"[a-z]{3}_[A-Za-z0-9_-]{21}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
Kind = Literal["state", "context", "file"]
PREFIXES: dict[Kind, str] = {"state": "sta", "context": "ctx", "file": "fil"}


class SnapshotFacts(Struct, kw_only=True):
    """What E2B's dialect keeps of a snapshot, which is a state."""

    name: str
    sandbox: str
    template: str


class ObjectFacts(Struct, kw_only=True):
    """The description of an object, without its bytes."""

    json: bool | UnsetType = UNSET
    """Whether a context is data; otherwise it is text."""
    name: str | UnsetType = UNSET
    left_out: dict[str, str] | UnsetType = UNSET
    """Variables that a state does not hold, and why."""
    snapshot: SnapshotFacts | UnsetType = UNSET


class StoredObject(ObjectFacts, kw_only=True):
    """A state, context or file as its tenant sees it."""

    id: str
    size: int
    sha256: str
    created_at: float
    expires_at: float


class Objects:
    """Keeps bytes for tenants. The same bytes are on disk once, for all tenants."""

    def __init__(self, blobs: Blobs, database: Database, stored: StoredBytes) -> None:
        self._blobs, self._database, self._stored = blobs, database, stored

    async def put(
        self,
        principal: Principal,
        kind: Kind,
        pieces: AsyncIterator[bytes],
        seconds: float,
        facts: ObjectFacts | None = None,
    ) -> StoredObject:
        """Keep bytes as they come; return what `describe` does."""
        draft, hashed, size = self._blobs.draft(), hashlib.sha256(), 0
        with self._stored.reserve(principal) as room:
            try:
                with draft.open("xb") as file:
                    async for piece in pieces:
                        size += len(piece)
                        room.grow(len(piece))
                        hashed.update(piece)
                        file.write(piece)
                digest, ident = hashed.hexdigest(), new_id(PREFIXES[kind])
                await self._blobs.keep(draft, digest, _name(principal.tenant, ident))
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
            now = clock.now()
            known = encode(facts or ObjectFacts()).decode()
            row = (ident, kind, principal.tenant, digest, size, known, now, now + seconds)
            self._database.write("INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)
        await self._blobs.publish(
            _name(principal.tenant, ident), dict(zip(_COLUMNS, row, strict=True))
        )
        return self.describe(principal, kind, ident)

    async def learn(self, principal: Principal, kind: Kind, ident: str) -> None:
        """Find out about an object that another replica may have; nothing if this one knows it."""
        query = "SELECT 1 FROM objects WHERE id = ? AND tenant = ?"
        if not _ID.match(ident) or self._database.one(query, ident, principal.tenant) is not None:
            return
        facts = await self._blobs.lookup(_name(principal.tenant, ident))
        if facts is None or (facts.get("id"), facts.get("tenant")) != (ident, principal.tenant):
            return
        if facts.get("kind") == kind and _is_row(facts):
            query = "INSERT OR IGNORE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            self._database.write(query, *(facts[name] for name in _COLUMNS))

    def describe(self, principal: Principal, kind: Kind, ident: str) -> StoredObject:
        """Describe an object; 404 if the tenant does not have it."""
        return _describe(self._row(principal, kind, ident))

    def list(self, principal: Principal, kind: Kind) -> list[StoredObject]:
        """Describe each object of a kind that the tenant has, newest first."""
        query = (
            "SELECT * FROM objects WHERE tenant = ? AND kind = ? AND expires > ?"
            " ORDER BY created DESC LIMIT 1000"
        )
        return [
            _describe(row) for row in self._database.all(query, principal.tenant, kind, clock.now())
        ]

    async def fetch(self, principal: Principal, kind: Kind, ident: str) -> Path:
        """Return a file of its bytes; 404 if the tenant has no such object."""
        await self.learn(principal, kind, ident)
        digest = str(self._row(principal, kind, ident)["digest"])
        path = await self._blobs.fetch(digest, _name(principal.tenant, ident))
        if path is None:
            raise not_found(kind)
        return path

    async def delete(self, principal: Principal, kind: Kind, ident: str) -> None:
        """Forget an object; its bytes are deleted with their last object."""
        await self.learn(principal, kind, ident)
        digest = self._row(principal, kind, ident)["digest"]
        self._database.write("DELETE FROM objects WHERE id = ?", ident)
        self._blobs.forget(_name(principal.tenant, ident))
        self._drop(digest)

    def sweep(self) -> None:
        """Delete what has expired."""
        now = clock.now()
        for row in self._database.all("SELECT * FROM objects WHERE expires < ?", now):
            self._database.write("DELETE FROM objects WHERE id = ?", row["id"])
            self._blobs.forget(_name(row["tenant"], row["id"]))
            self._drop(row["digest"])

    def _drop(self, digest: str) -> None:
        if self._database.one("SELECT 1 FROM objects WHERE digest = ?", digest) is None:
            self._blobs.drop(digest)

    def _row(self, principal: Principal, kind: Kind, ident: str) -> sqlite3.Row:
        query = "SELECT * FROM objects WHERE id = ? AND tenant = ? AND kind = ? AND expires > ?"
        row = self._database.one(query, ident, principal.tenant, kind, clock.now())
        if row is None:
            raise not_found(kind)
        return row


def _is_row(facts: dict[str, Any]) -> bool:
    """Return whether what came from the store can be a row.

    SECURITY: others may write to the store. The digest becomes the name of a file.
    """
    if facts.keys() != set(_COLUMNS) or not _DIGEST.match(str(facts["digest"])):
        return False
    try:
        msgspec.convert(json.loads(facts["facts"]), ObjectFacts)
    except (TypeError, ValueError):
        return False
    numbers = (facts["size"], facts["created"], facts["expires"])
    return all(type(number) in (int, float) for number in numbers)


def _name(tenant: str, ident: str) -> str:
    return f"{tenant}/{ident}"


def _describe(row: sqlite3.Row) -> StoredObject:
    return msgspec.convert(
        {
            **json.loads(row["facts"]),
            "id": row["id"],
            "size": row["size"],
            "sha256": row["digest"],
            "created_at": row["created"],
            "expires_at": row["expires"],
        },
        StoredObject,
    )
