"""Saved states, contexts and files: bytes by their SHA-256, rows of who has them till when."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from atoll.service import clock
from atoll.service.http.problems import not_found
from atoll.service.ids import new_id

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator
    from pathlib import Path

    from atoll.service.access.keys import Principal
    from atoll.service.storage.blobs import Blobs
    from atoll.service.storage.database import Ledger
    from atoll.service.storage.stored import StoredBytes

_COLUMNS = ("id", "kind", "tenant", "digest", "size", "facts", "created", "expires")
_ID = re.compile(r"[a-z]{3}_[A-Za-z0-9_-]{21}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
PREFIXES = {"state": "sta", "context": "ctx", "file": "fil"}


class Objects:
    """Keeps bytes for tenants. The same bytes are on disk once, whoever has them."""

    def __init__(self, blobs: Blobs, ledger: Ledger, stored: StoredBytes) -> None:
        self._blobs, self._ledger, self._stored = blobs, ledger, stored

    async def put(
        self, principal: Principal, kind: str, pieces: AsyncIterator[bytes], seconds: float,
        **facts: Any,
    ) -> dict[str, Any]:  # fmt: skip
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
            known = json.dumps(facts)
            row = (ident, kind, principal.tenant, digest, size, known, now, now + seconds)
            self._ledger.write("INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)
        await self._blobs.tell(
            _name(principal.tenant, ident), dict(zip(_COLUMNS, row, strict=True))
        )
        return self.describe(principal, kind, ident)

    async def learn(self, principal: Principal, kind: str, ident: str) -> None:
        """Find out about an object that another replica may have; nothing if this one knows it."""
        query = "SELECT 1 FROM objects WHERE id = ? AND tenant = ?"
        if not _ID.match(ident) or self._ledger.one(query, ident, principal.tenant) is not None:
            return
        told = await self._blobs.told(_name(principal.tenant, ident))
        if told is None or (told.get("id"), told.get("tenant")) != (ident, principal.tenant):
            return
        if told.get("kind") == kind and _is_row(told):
            query = "INSERT OR IGNORE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            self._ledger.write(query, *(told[name] for name in _COLUMNS))

    def describe(self, principal: Principal, kind: str, ident: str) -> dict[str, Any]:
        """Return what is known of an object; 404 for one that the tenant does not have."""
        return _describe(self._row(principal, kind, ident))

    def list(self, principal: Principal, kind: str) -> list[dict[str, Any]]:
        """Return what is known of each object of a kind that the tenant has, newest first."""
        query = (
            "SELECT * FROM objects WHERE tenant = ? AND kind = ? AND expires > ?"
            " ORDER BY created DESC LIMIT 1000"
        )
        return [
            _describe(row) for row in self._ledger.all(query, principal.tenant, kind, clock.now())
        ]

    async def fetch(self, principal: Principal, kind: str, ident: str) -> Path:
        """Return a file of its bytes; 404 if the tenant has no such object."""
        await self.learn(principal, kind, ident)
        digest = str(self._row(principal, kind, ident)["digest"])
        found = await self._blobs.fetch(digest, _name(principal.tenant, ident))
        if found is None:
            raise not_found(kind)
        return found

    async def delete(self, principal: Principal, kind: str, ident: str) -> None:
        """Forget an object; its bytes go with the last one that has them."""
        await self.learn(principal, kind, ident)
        digest = self._row(principal, kind, ident)["digest"]
        self._ledger.write("DELETE FROM objects WHERE id = ?", ident)
        self._blobs.forget(_name(principal.tenant, ident))
        self._drop(digest)

    def sweep(self) -> None:
        """Delete what has expired."""
        now = clock.now()
        for row in self._ledger.all("SELECT * FROM objects WHERE expires < ?", now):
            self._ledger.write("DELETE FROM objects WHERE id = ?", row["id"])
            self._blobs.forget(_name(row["tenant"], row["id"]))
            self._drop(row["digest"])

    def _drop(self, digest: str) -> None:
        if self._ledger.one("SELECT 1 FROM objects WHERE digest = ?", digest) is None:
            self._blobs.drop(digest)

    def _row(self, principal: Principal, kind: str, ident: str) -> sqlite3.Row:
        query = "SELECT * FROM objects WHERE id = ? AND tenant = ? AND kind = ? AND expires > ?"
        row = self._ledger.one(query, ident, principal.tenant, kind, clock.now())
        if row is None:
            raise not_found(kind)
        return row


def _is_row(told: dict[str, Any]) -> bool:
    """Return whether what came from the store can be a row.

    SECURITY: others may write to the store. The digest becomes the name of a file.
    """
    if told.keys() != set(_COLUMNS) or not _DIGEST.match(str(told["digest"])):
        return False
    try:
        facts = json.loads(told["facts"])
    except (TypeError, ValueError):
        return False
    numbers = (told["size"], told["created"], told["expires"])
    return isinstance(facts, dict) and all(type(one) in (int, float) for one in numbers)


def _name(tenant: str, ident: str) -> str:
    return f"{tenant}/{ident}"


def _describe(row: sqlite3.Row) -> dict[str, Any]:
    times = {"created_at": row["created"], "expires_at": row["expires"]}
    known = {"id": row["id"], "size": row["size"], "sha256": row["digest"]}
    return {**known, **times, **json.loads(row["facts"])}
