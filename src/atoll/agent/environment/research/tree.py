"""A research context as text: an indented tree, for get_state() and for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.agent.environment.research.tree_state import Node

MARKS = {"analyzed": "[+]", "pending": "[?]", "stale": "[~]"}
DEEPEST = 8
"""Levels of indentation; deeper nodes stand below each other."""
MOST_SHOWN = 60
"""Nodes in the text; of more, the newest."""
LONGEST_FOUND = 100


def render(
    nodes: Sequence[Node], *, forgotten: int = 0, note: str = "", most: int = MOST_SHOWN
) -> str:
    """Return progress and tree, of the `most` newest nodes; `note` stands below them."""
    counts = [sum(one.status == status for one in nodes) for status in MARKS]
    shown = list(nodes)[-most:]
    left = len(nodes) - len(shown) + forgotten
    lines = [
        "## Research Context",
        "Progress: {} analyzed, {} pending, {} stale".format(*counts),
        "",
        *([f"({left:,} earlier calls are left out)"] if left else []),
    ]
    for level, node in in_tree_order(shown):
        lines += _lines(node, "  " * min(level, DEEPEST))
    return "\n".join([*lines, *(["", note] if note else [])])


def in_tree_order(nodes: Sequence[Node]) -> list[tuple[int, Node]]:
    """Return nodes with their level, each parent before its children; no recursion."""
    known = {node.id for node in nodes}
    children: dict[str | None, list[Node]] = {}
    for node in nodes:
        children.setdefault(node.parent if node.parent in known else None, []).append(node)
    found: list[tuple[int, Node]] = []
    waiting = [(0, node) for node in reversed(children.get(None, []))]
    while waiting:
        level, node = waiting.pop()
        found.append((level, node))
        waiting += [(level + 1, one) for one in reversed(children.get(node.id, []))]
    return found


def _lines(node: Node, indent: str) -> list[str]:
    lines = [f"{indent}{MARKS.get(node.status, '[?]')} {node.id}: {node.call}"]
    if found := " ".join(node.found.split()):
        cut = "..." if len(found) > LONGEST_FOUND else ""
        lines.append(f"{indent}    -> {found[:LONGEST_FOUND]}{cut}")
    if ids := dict.fromkeys((*node.references, *node.similar)):
        lines.append(f"{indent}    refs: {', '.join(ids)}")
    return lines
