"""ResearchContext: what a model has looked at, as a graph that is built from the invocation log.

    grep ──▶ G1 ◀── refers to ── P1 ◀── peek          each call of a tool is a node
             │                                        its parent: what it derives from, else the
             └─▶ P1 ─▶ L1 ─▶ N1                       call before it

It is a view: nodes are made of entries of the log after each turn. Calls of one tool in one turn
(a loop, a batch) have the same parent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.research import references
from atoll.agent.environment.research.tree import MOST_SHOWN, render
from atoll.concurrency import forks
from atoll.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from atoll.agent.environment.tools.invocations import Invocation, InvocationLog
    from atoll.agent.memory.vectors import Embedder

PREFIXES = {
    "grep": "G", "peek": "P", "llm_query": "L", "rlm_query": "L", "llm_call": "L", "list_dir": "D",
    "web_fetch": "W", "recall": "R", "code_search": "CS", "doc_search": "DS", "note": "N",
}  # fmt: skip
OTHER = "T"
"""The prefix of any other tool."""
UNTRACKED = frozenset({"FINAL", "SHOW_TOOLS"})
CHANGING = frozenset({"L", "R", "N"})
"""Prefixes of calls whose result may differ each time without anything having changed."""
ANALYZED, PENDING, STALE = "analyzed", "pending", "stale"
MOST_NODES = 500
"""Nodes that are kept; the oldest are forgotten first."""
SHOWN_FROM = 3
"""Nodes from which on the tree is shown."""
LONGEST_CALL, LONGEST_FOUND = 160, 400
MOST_DRAWN, DRAWN_RESULT = 100, 120
"""Nodes of the graph in a trajectory, and characters of the result of each."""
Fingerprint = Callable[[str], str | None]


@dataclass(slots=True, kw_only=True)
class Node:
    """One call, or one note, and what it refers to."""

    id: str
    tool: str
    call: str
    """How it was called, cut."""
    found: str = ""
    """The beginning of its result."""
    parent: str | None = None
    references: tuple[str, ...] = ()
    """Nodes that it refers to by text: their ids, their results, a name that they found."""
    similar: tuple[str, ...] = ()
    """Nodes before it whose result means much the same."""
    status: str = PENDING
    """`analyzed` once something refers to it, `stale` if what it came from has changed."""
    turn: str = ""
    outcome: str = "ok"
    path: str = ""
    """The document that it looked into; empty: the context, or none."""
    fingerprint: str = ""
    digest: str = ""


class ResearchContext:
    """Nodes in the order of the calls; for several threads at once."""

    def __init__(
        self,
        *,
        use_semantic: bool = True,
        semantic_threshold: float = 0.7,
        embedder: Embedder | None = None,
        clean: Callable[[str], str] = str,
        fingerprint: Fingerprint = lambda _path: None,
    ) -> None:
        """`embedder`: unset, the embedded encoder. `clean` removes secrets from what is kept.

        `fingerprint` returns what changes when a document of this name does; None if there is none.
        """
        self._similarity = references.Similarity(embedder, semantic_threshold, on=use_semantic)
        self._clean, self._fingerprint = clean, fingerprint
        self._lock = forks.new_rlock()
        self._nodes: dict[str, Node] = {}
        self._numbers: Counter[str] = Counter()
        self._read = 0
        self.forgotten = 0
        """Nodes that are no longer kept."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, oldest first."""
        with self._lock:
            return tuple(self._nodes.values())

    @property
    def semantic(self) -> str:
        """`on`, or why references are found by text alone."""
        return self._similarity.state

    def __len__(self) -> int:
        return len(self._nodes)

    def update(self, log: InvocationLog) -> None:
        """Add the calls that are new in the log."""
        with self._lock:
            new = log.since(self._read)
            self._read = len(log)
            for one in new[-MOST_NODES:]:
                self.add(one)

    def add(self, one: Invocation) -> Node | None:
        """Add one call; return its node, or None if calls of this tool are not tracked."""
        if one.tool in UNTRACKED:
            return None
        with self._lock:
            node = self._node(one)
            self._place(node)
            self._outdate_repeated(node)
            self._nodes[node.id] = node
            self._forget()
            return node

    def conclude(self, texts: Iterable[str]) -> None:
        """Mark nodes as analyzed that an answer is from: it refers to them, or has their text."""
        with self._lock:
            wanted = [text for text in map(references.one_line, texts) if text]
            named = references.cited(wanted, self._nodes)
            for node in self._nodes.values():
                is_used = node.id in named or references.holds(node.found, wanted)
                if node.status == PENDING and is_used:
                    node.status = ANALYZED

    def refresh(self) -> None:
        """Mark nodes as stale whose document has changed, and all that refers to them."""
        with self._lock:
            for node in self._nodes.values():
                if node.path and node.fingerprint != (self._fingerprint(node.path) or ""):
                    node.status = STALE
            self._spread_stale()

    def outdate(self, tools: Iterable[str]) -> None:
        """Mark nodes of these tools as stale that looked into the context: it is another now."""
        with self._lock:
            for node in self._nodes.values():
                if node.tool in set(tools) and not node.path:
                    node.status = STALE
            self._spread_stale()

    def relate(self) -> None:
        """Find references by meaning; without the encoder, none."""
        with self._lock:
            if len(self._nodes) >= SHOWN_FROM:
                self._similarity.relate(list(self._nodes.values()))

    def recall(self, query: str, most: int = 5) -> list[tuple[float, Node]]:
        """Return the nodes closest to a query, best first, with their similarity."""
        with self._lock:
            return self._similarity.closest(query, list(self._nodes.values()), most)

    def tree(self, most: int = MOST_SHOWN) -> str | None:
        """Return the tree as text, of the `most` newest nodes, from 3 nodes on; None before."""
        with self._lock:
            if len(self._nodes) < SHOWN_FROM:
                return None
            self.refresh()
            self.relate()
            note = "" if self.semantic == "on" else f"References by text alone: {self.semantic}"
            return render(self.nodes, forgotten=self.forgotten, note=note, most=most)

    def graph(self) -> tuple[tuple[dict[str, Any], ...], int]:
        """Return the newest nodes as short plain data, for a trajectory, and how many are left out.

        References by meaning are among them from 3 nodes on.
        """
        with self._lock:
            self.refresh()
            self.relate()
            shown = list(self._nodes.values())[-MOST_DRAWN:]
            left_out = len(self._nodes) - len(shown) + self.forgotten
            return tuple(map(_drawn, shown)), left_out

    def reset(self) -> None:
        """Forget all nodes; numbers begin at 1 again."""
        with self._lock:
            self._nodes.clear()
            self._numbers.clear()
            self._read, self.forgotten = 0, 0
            self._similarity.forget()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data; from_dict() gives an equal context."""
        with self._lock:
            nodes = [asdict(node) for node in self._nodes.values()]
            return {"nodes": nodes, "numbers": dict(self._numbers), "forgotten": self.forgotten}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], **options: Any) -> ResearchContext:
        """Return a context with the nodes of to_dict(); `options` are those of the class."""
        found = cls(**options)
        found.load(data)
        return found

    def load(self, data: Mapping[str, Any]) -> None:
        """Replace all nodes by those of to_dict(); StateError if the data is not from there."""
        try:
            nodes = [_loaded(one) for one in data["nodes"][-MOST_NODES:]]
            numbers = {str(name): int(number) for name, number in data["numbers"].items()}
            forgotten = int(data["forgotten"])
        except (LookupError, TypeError, ValueError, AttributeError):
            raise StateError("the research of a saved environment is damaged") from None
        with self._lock:
            self.reset()
            self._nodes = {node.id: node for node in nodes}
            self._numbers.update(numbers)
            self.forgotten = forgotten

    def _node(self, one: Invocation) -> Node:
        prefix = PREFIXES.get(one.tool, OTHER)
        self._numbers[prefix] += 1
        path = one.arguments.get("path")
        document = path if isinstance(path, str) else ""
        found = str(one.arguments.get("text", "")) if one.tool == "note" else one.found
        is_ok = one.outcome == "ok"
        return Node(
            id=f"{prefix}{self._numbers[prefix]}",
            tool=one.tool,
            call=self._call_text(one)[:LONGEST_CALL],
            found=self._clean(found)[:LONGEST_FOUND] if is_ok else f"failed: {one.outcome}",
            turn=one.parent,
            outcome=one.outcome,
            path=document,
            fingerprint=(self._fingerprint(document) or "") if document else "",
            digest=one.digest,
            references=references.mentioned(one, self._nodes),
        )

    def _call_text(self, one: Invocation) -> str:
        if one.tool == "note":
            return one.tool
        return references.call_text(one.tool, one.arguments, self._clean)

    def _place(self, node: Node) -> None:
        """Give a node its parent, and mark what it refers to as analyzed."""
        for name in node.references:
            if self._nodes[name].status == PENDING:
                self._nodes[name].status = ANALYZED
        if any(self._nodes[name].status == STALE for name in node.references):
            node.status = STALE
        last = next(reversed(self._nodes.values()), None)
        if node.references:
            node.parent = node.references[-1]
        elif last is not None:
            again = last.tool == node.tool and last.turn == node.turn
            node.parent = last.parent if again else last.id
        if node.tool == "note" and node.status == PENDING:
            node.status = ANALYZED

    def _outdate_repeated(self, new: Node) -> None:
        """Mark earlier calls with the same arguments and another result as stale."""
        if new.id.rstrip("0123456789") in CHANGING or new.outcome != "ok":
            return
        for old in self._nodes.values():
            same = (old.tool, old.call, old.outcome) == (new.tool, new.call, "ok")
            if same and old.digest != new.digest:
                old.status = STALE
        self._spread_stale()

    def _spread_stale(self) -> None:
        """Mark as stale what refers to a stale node: references lead to older nodes only."""
        for node in self._nodes.values():
            kept = (self._nodes.get(name) for name in node.references)
            if any(one is not None and one.status == STALE for one in kept):
                node.status = STALE

    def _forget(self) -> None:
        while len(self._nodes) > MOST_NODES:
            del self._nodes[next(iter(self._nodes))]
            self.forgotten += 1


def _drawn(node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "call": node.call,
        "found": references.one_line(node.found)[:DRAWN_RESULT],
        "parent": node.parent,
        "references": list(node.references),
        "similar": list(node.similar),
        "status": node.status,
    }


def _loaded(data: Mapping[str, Any]) -> Node:
    known = {one.name for one in fields(Node)}
    values = {name: value for name, value in data.items() if name in known}
    for name, value in values.items():
        is_list = name in {"references", "similar"}
        values[name] = tuple(map(str, value)) if is_list else value
        if not is_list and not isinstance(value, str) and (name, value) != ("parent", None):
            raise TypeError(name)
    return Node(**values)
