"""Who did what, of what an operator answers for: keys, sessions of other tenants, draining."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from atoll.service import clock

if TYPE_CHECKING:
    from atoll.service.storage.database import Database

Action = Literal[
    "key made", "key changed", "key revoked", "session ended", "session paused", "drain", "undrain"
]
MAX_PAGE = 1_000
KEPT_SECONDS = 365 * 86_400
COMMAND_LINE = "command line"
_PAGE = """
SELECT audit.*, keys.name AS name FROM audit LEFT JOIN keys ON keys.id = audit.key
WHERE number < ? AND (? = '' OR instr(lower(
    action || ' ' || target || ' ' || detail || ' ' || audit.key || ' ' || audit.tenant || ' '
    || coalesce(keys.name, '')), lower(?)))
ORDER BY number DESC LIMIT ?
"""


class AuditEntry(Struct, kw_only=True):
    """One thing that was done."""

    number: int
    at: float
    key: str
    """The id of the key that did it, or `command line`."""
    name: str
    tenant: str
    action: Action
    target: str
    detail: dict[str, str | float | None]


class AuditPage(Struct):
    """Entries, the newest first; `before` of the next page is `next_before`."""

    items: list[AuditEntry]
    next_before: int | None


class AuditLog:
    """The entries in the database. Nothing changes or deletes one but its age."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def note(
        self,
        action: Action,
        target: str,
        *,
        key: str = COMMAND_LINE,
        tenant: str = "",
        **detail: str | float | None,
    ) -> None:
        """Write down that something is being done."""
        row = (clock.now(), key, tenant, action, target, json.dumps(detail))
        query = "INSERT INTO audit (at, key, tenant, action, target, detail) VALUES (?,?,?,?,?,?)"
        self._database.write(query, *row)

    def page(self, search: str, limit: int, before: int) -> AuditPage:
        """Return the entries before a number that contain a text; 0: the newest."""
        limit = max(1, min(limit, MAX_PAGE))
        rows = self._database.all(_PAGE, before or 1 << 62, search, search, limit + 1)
        items = [
            AuditEntry(
                **{**dict(row), "name": row["name"] or "", "detail": json.loads(row["detail"])}
            )
            for row in rows[:limit]
        ]
        return AuditPage(items, items[-1].number if len(rows) > limit else None)

    def sweep(self) -> None:
        """Delete what is older than a year."""
        self._database.write("DELETE FROM audit WHERE at < ?", clock.now() - KEPT_SECONDS)
