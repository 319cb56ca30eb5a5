"""The fork tree: which session came from which, and where its checkpoints are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.storage.database import Ledger

MOST_NODES = 2_000
_FAMILY = """
WITH RECURSIVE up(id, parent, depth) AS (
    SELECT id, parent, 0 FROM sessions WHERE id = :id AND tenant = :tenant
    UNION ALL
    SELECT s.id, s.parent, depth + 1 FROM sessions s JOIN up ON s.id = up.parent
    WHERE s.tenant = :tenant
    LIMIT :most),
down(id) AS (
    SELECT id FROM (SELECT id FROM up ORDER BY depth DESC LIMIT 1)
    UNION ALL
    SELECT s.id FROM sessions s JOIN down ON s.parent = down.id WHERE s.tenant = :tenant
    LIMIT :most)
SELECT s.id, s.parent, s.created, s.ended, s.reason FROM sessions s JOIN down ON s.id = down.id
ORDER BY s.created LIMIT :most
"""


def tree(ledger: Ledger, live: dict[str, HostedSession], session: HostedSession) -> dict[str, Any]:
    """Return the sessions and checkpoints that a session shares its first ancestor with.

    Sessions that have ended are in it while the ledger remembers them.
    """
    given = {"id": session.id, "tenant": session.tenant, "most": MOST_NODES + 1}
    rows = ledger.all(_FAMILY, given)
    nodes: list[dict[str, Any]] = []
    for row in rows[:MOST_NODES]:
        found = live.get(row["id"])
        nodes.append(_ended(row) if found is None else _running(found, session))
        nodes += [] if found is None else _marks(found)
    root = nodes[0]["id"] if nodes else session.id
    return {"root": root, "nodes": nodes, "truncated": len(rows) > MOST_NODES}


def _running(found: HostedSession, asked: HostedSession) -> dict[str, Any]:
    return {
        "id": found.id,
        "kind": "session",
        "name": found.name or found.metadata.get("name", ""),
        "parent": found.parent,
        "created_at": found.created,
        "state": found.state,
        "memory_bytes": found.usage()["memory_bytes"],
        "executions": found.executions,
        "current": found is asked,
    }


def _ended(row: Any) -> dict[str, Any]:
    return {
        "id": row["id"],
        "kind": "session",
        "name": "",
        "parent": row["parent"],
        "created_at": row["created"],
        "ended_at": row["ended"],
        "reason": row["reason"],
        "state": "ended",
        "current": False,
    }


def _marks(found: HostedSession) -> list[dict[str, Any]]:
    return [
        {
            "id": mark,
            "kind": "mark",
            "name": name,
            "parent": found.id,
            "created_at": made,
            "state": "kept",
            "rolled_back": mark == found.rolled_back,
            "current": False,
        }
        for mark, (name, made) in found.marks.items()
    ]
