"""The graph of calls in a trajectory as rows: the terminal draws a tree of them, a page a graph.

# SECURITY: the nodes may be forged. A row has an id of few characters, its parent is a row before
# it, and its references are rows that exist; there are no cycles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from atoll.agent.trajectory.events import Explored

MARKS = {"analyzed": "[+]", "pending": "[?]", "stale": "[~]"}
ROWS_CAP, DEEPEST = 200, 10
_ID = re.compile(r"[A-Z]{1,2}[0-9]{1,6}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One node of the tree; its parent and references are indices of rows."""

    id: str
    call: str
    found: str
    status: str
    parent: int | None
    """Index of its parent's row."""
    level: int
    references: tuple[int, ...] = ()
    """Indices of the rows that it refers to by text."""
    similar: tuple[int, ...] = ()
    """Indices of the rows with a similar meaning."""

    @property
    def mark(self) -> str:
        """Its status as a sign."""
        return MARKS[self.status]


def rows(event: Explored) -> list[Row]:
    """Return the nodes as a tree in rows, each parent above its children."""
    nodes = _known(event.nodes)
    order = _in_tree_order(nodes)
    places = {name: at for at, (name, _) in enumerate(order)}
    return [_row(name, level, nodes, places) for name, level in order]


def summary(event: Explored) -> str:
    """Return strategy, calls and token efficiency in one line."""
    calls = ", ".join(f"{name} {number}" for name, number in event.calls.items())
    told = [event.strategy, calls, f"token efficiency {event.token_efficiency:.3g}"]
    told += [f"{event.left_out:,} earlier calls left out"] if event.left_out else []
    return " · ".join(one for one in told if one)


def _known(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for node in list(nodes)[:ROWS_CAP]:
        name = node.get("id")
        if isinstance(name, str) and _ID.fullmatch(name):
            found.setdefault(name, node)
    return found


def _in_tree_order(nodes: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Return ids with their levels; a parent that comes later or is missing is ignored."""
    children: dict[str | None, list[str]] = {}
    seen: set[str] = set()
    for name, node in nodes.items():
        parent = node.get("parent")
        is_before = isinstance(parent, str) and parent in seen
        children.setdefault(parent if is_before else None, []).append(name)
        seen.add(name)
    order: list[tuple[str, int]] = []
    waiting = [(name, 0) for name in reversed(children.get(None, []))]
    while waiting:
        name, level = waiting.pop()
        order.append((name, level))
        waiting += [(one, min(level + 1, DEEPEST)) for one in reversed(children.get(name, []))]
    return order


def _row(
    name: str, level: int, nodes: Mapping[str, Mapping[str, Any]], places: Mapping[str, int]
) -> Row:
    node = nodes[name]
    status, parent = node.get("status"), node.get("parent")
    return Row(
        id=name,
        call=str(node.get("call", "")),
        found=str(node.get("found", "")),
        status=status if isinstance(status, str) and status in MARKS else "pending",
        parent=places.get(parent) if level and isinstance(parent, str) else None,
        level=level,
        references=_places(node.get("references"), places),
        similar=_places(node.get("similar"), places),
    )


def _places(names: Any, places: Mapping[str, int]) -> tuple[int, ...]:
    if not isinstance(names, (list, tuple)):
        return ()
    return tuple(places[one] for one in names if isinstance(one, str) and one in places)
