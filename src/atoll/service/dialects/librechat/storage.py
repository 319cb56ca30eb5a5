"""Files of LibreChat's users: in storage sessions, by id, each bound to who may read it.

The bytes are objects of the tenant (see storage/objects): the same bytes are on disk once.
"""

from __future__ import annotations

import mimetypes
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.service import clock
from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator
    from pathlib import Path

    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service

ID = re.compile(r"[A-Za-z0-9_-]{21}\Z")
_RESOURCE = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")
LONGEST_NAME = 256
DEEPEST_NAME = 10
_COLUMNS = "f.*, o.size AS size, o.digest AS digest, o.expires AS expires"
_LIVE = f"SELECT {_COLUMNS} FROM files f JOIN objects o ON o.id = f.object WHERE o.expires > ?"  # noqa: S608


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file that a client uploaded, or that code wrote."""

    id: str
    storage: str
    owner: str
    """Who may read it: `user:NAME`, `agent:ID` or `skill:ID:v:VERSION`, within its tenant."""
    name: str
    size: int
    digest: str
    created: float
    read_only: bool
    object: str

    @property
    def media_type(self) -> str:
        """What its name says that it is."""
        return mimetypes.guess_type(self.name)[0] or "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Scope:
    """What a request says that a file belongs to; `kind` is empty if it does not say."""

    kind: str = ""
    id: str = ""
    version: str = ""

    def owner(self, principal: Principal) -> str:
        """Return the owner that a file of this scope has; 400 if it is not a scope."""
        if self.kind in ("", "user"):
            return f"user:{principal.user}"
        if self.kind not in ("agent", "skill") or not _RESOURCE.match(self.id):
            raise Problem(400, "invalid", "kind is user, agent or skill, with an id")
        if self.kind == "agent":
            return f"agent:{self.id}"
        if not self.version.isdecimal():
            raise Problem(400, "invalid", "a skill has a version")
        return f"skill:{self.id}:v:{int(self.version)}"

    def may_read(self, principal: Principal, file: StoredFile) -> bool:
        """Return whether the file is the one that the request speaks of.

        Clients of old do not say what a file belongs to: they may read what is not a user's.
        """
        if not self.kind and not file.owner.startswith("user:"):
            return True
        return file.owner == self.owner(principal)


class FileStore:
    """Storage sessions and their files."""

    def __init__(self, service: Service) -> None:
        self._database, self._objects = service.database, service.objects
        self._seconds = service.settings.file_seconds

    async def put(
        self,
        principal: Principal,
        storage: str,
        owner: str,
        name: str,
        pieces: AsyncIterator[bytes],
        *,
        read_only: bool = False,
    ) -> StoredFile:
        """Keep a file's bytes as they come."""
        made = await self._objects.put(principal, "file", pieces, self._seconds)
        ident, now = new_id(), clock.now()
        row = (ident, storage, principal.tenant, owner, name, int(read_only), made.id, now)
        self._database.write("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)
        return self.get(principal, storage, ident)

    def get(self, principal: Principal, storage: str, ident: str) -> StoredFile:
        """Return a file of the tenant; 404 if it has none of that id."""
        query = f"{_LIVE} AND f.tenant = ? AND f.storage = ? AND f.id = ?"
        row = self._database.one(query, clock.now(), principal.tenant, storage, ident)
        if row is None:
            raise Problem(404, "not_found", "File not found")
        return _file(row)

    def list(self, principal: Principal, storage: str) -> list[StoredFile]:
        """Return the files of a storage session, oldest first."""
        query = f"{_LIVE} AND f.tenant = ? AND f.storage = ? ORDER BY f.created, f.id LIMIT 10000"
        rows = self._database.all(query, clock.now(), principal.tenant, storage)
        return [_file(row) for row in rows]

    async def path(self, principal: Principal, file: StoredFile) -> Path:
        """Return where its bytes are."""
        return await self._objects.fetch(principal, "file", file.object)

    async def delete(self, principal: Principal, file: StoredFile) -> None:
        """Forget a file."""
        self._database.write("DELETE FROM files WHERE id = ?", file.id)
        await self._objects.delete(principal, "file", file.object)

    def owner_of(self, principal: Principal, storage: str) -> str | None:
        """Return whom a storage session belongs to; None if there is no file in it."""
        query = "SELECT owner FROM files WHERE storage = ? AND tenant = ? LIMIT 1"
        row = self._database.one(query, storage, principal.tenant)
        return None if row is None else str(row["owner"])


def new_id() -> str:
    """Return an id of 126 random bits, in the shape that the official service gives."""
    return secrets.token_urlsafe(16)[:21]


def checked_name(name: Any) -> str:
    """Return a relative path; 400 for an empty or traversing path."""
    parts = name.split("/") if isinstance(name, str) else [""]
    sound = (
        isinstance(name, str)
        and 0 < len(name) <= LONGEST_NAME
        and len(parts) <= DEEPEST_NAME
        and not any(part in ("", ".", "..") for part in parts)
        and not any(sign in name for sign in ("\\", "\0", "\r", "\n"))
    )
    if not sound:
        raise Problem(400, "invalid", f"not a file name: {name!r:.100}")
    return str(name)


def _file(row: sqlite3.Row) -> StoredFile:
    known = {name: row[name] for name in StoredFile.__dataclass_fields__}
    return StoredFile(**{**known, "read_only": bool(row["read_only"])})
