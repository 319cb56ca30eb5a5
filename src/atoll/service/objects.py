"""Saved states and contexts: bytes in a folder by their SHA-256, rows of who has them till when."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from typing import TYPE_CHECKING, Any

from atoll.service import clock
from atoll.service.ids import new_id
from atoll.service.problems import Problem, not_found

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator
    from pathlib import Path

    from atoll.service.keys import Principal
    from atoll.service.ledger import Ledger

PREFIXES = {"state": "sta", "context": "ctx", "file": "fil"}


class Objects:
    """Keeps bytes for tenants. The same bytes are on disk once, whoever has them."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._folder, self._ledger = folder / "blobs", ledger
        self._folder.mkdir(exist_ok=True)
        for draft in self._folder.glob("*.draft"):
            draft.unlink(missing_ok=True)

    async def put(
        self, principal: Principal, kind: str, pieces: AsyncIterator[bytes], seconds: float,
        **facts: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Keep bytes as they come; return what `describe` does."""
        draft = self._folder / f"{secrets.token_hex(16)}.draft"
        digest, size = hashlib.sha256(), 0
        room = principal.quota.stored_bytes - self.stored(principal.tenant)
        try:
            with draft.open("xb") as file:
                async for piece in pieces:
                    size += len(piece)
                    _check_room(principal, size, room)
                    digest.update(piece)
                    file.write(piece)
            os.replace(draft, self._folder / digest.hexdigest())
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        now, ident = clock.now(), new_id(PREFIXES[kind])
        row = (ident, kind, principal.tenant, digest.hexdigest(), size, json.dumps(facts), now)
        query = "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        self._ledger.write(query, *row, now + seconds)
        return self.describe(principal, kind, ident)

    def stored(self, tenant: str) -> int:
        """Return how many bytes a tenant has."""
        query = "SELECT COALESCE(SUM(size), 0) AS total FROM objects WHERE tenant = ?"
        row = self._ledger.one(query, tenant)
        return int(row["total"]) if row else 0

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

    def path(self, principal: Principal, kind: str, ident: str) -> Path:
        """Return where its bytes are."""
        path = self._folder / str(self._row(principal, kind, ident)["digest"])
        if not path.exists():
            raise not_found(kind)
        return path

    def delete(self, principal: Principal, kind: str, ident: str) -> None:
        """Forget an object; its bytes go with the last one that has them."""
        digest = self._row(principal, kind, ident)["digest"]
        self._ledger.write("DELETE FROM objects WHERE id = ?", ident)
        self._drop(digest)

    def sweep(self) -> None:
        """Delete what has expired."""
        now = clock.now()
        for row in self._ledger.all("SELECT id, digest FROM objects WHERE expires < ?", now):
            self._ledger.write("DELETE FROM objects WHERE id = ?", row["id"])
            self._drop(row["digest"])

    def _drop(self, digest: str) -> None:
        if self._ledger.one("SELECT 1 FROM objects WHERE digest = ?", digest) is None:
            with contextlib.suppress(FileNotFoundError):
                (self._folder / digest).unlink()

    def _row(self, principal: Principal, kind: str, ident: str) -> sqlite3.Row:
        query = "SELECT * FROM objects WHERE id = ? AND tenant = ? AND kind = ? AND expires > ?"
        row = self._ledger.one(query, ident, principal.tenant, kind, clock.now())
        if row is None:
            raise not_found(kind)
        return row


def _describe(row: sqlite3.Row) -> dict[str, Any]:
    times = {"created_at": row["created"], "expires_at": row["expires"]}
    known = {"id": row["id"], "size": row["size"], "sha256": row["digest"]}
    return {**known, **times, **json.loads(row["facts"])}


def _check_room(principal: Principal, size: int, room: int) -> None:
    if size > room:
        what = f"the key may store {principal.quota.stored_bytes:,} bytes in all"
        raise Problem(403, "quota", f"{what}: delete states or contexts first")
