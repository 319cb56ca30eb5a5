"""ResearchContext: what a model has looked at, as a graph that is built from the entry log.

    grep ──▶ G1 ◀── refers to ── P1 ◀── peek          each call of a tool is a node
             │                                        its parent: what it derives from, else the
             └─▶ P1 ─▶ L1 ─▶ N1                       call before it

It is a view: nodes are made of entries of the log after each turn. Calls of one tool in one turn
(a loop, a batch) have the same parent. Nodes refer to each other by text, and by meaning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from atoll.agent.memory.vectors import Words, pack, similarities
from atoll.agent.retrieval import vectors
from atoll.concurrency import forks
from atoll.errors import RetrievalError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from atoll.agent.environment.tools.invocations import Invocation, InvocationLog
    from atoll.agent.memory.vectors import Embedder


_ID = r"(?:CS|DS|[GPLTDWRN])[1-9]\d{0,5}"
_BARE = re.compile(rf"\b({_ID})\b")
_CITED = re.compile(
    rf"(?:\b(?:see|from|per|in|of|by|after|using|and|or|with|refs?|based on|according to)[\s:]+"
    rf"|[\[(,]\s*)({_ID})\b",
    re.IGNORECASE,
)
"""An id in prose. A bare `P1` in a text may be anything; in a note it is what it looks like."""
SHORTEST_NAME, SHORTEST_PASSAGE = 5, 24
"""Characters of a name, and of a line, that are the same by more than chance."""
MAX_REFERENCES = 8
MAX_RELATED = 64
"""Nodes that are compared by meaning in one go: each takes the encoder 10 to 30 ms."""
MAX_COMPARED = 200
"""Earlier nodes, the newest, that a call is compared with."""
LONGEST_MEANING = 300
NOT_INSTALLED = "the extra `semantic` is not installed"


def call_text(tool: str, arguments: Mapping[str, Any], clean: Callable[[str], str] = str) -> str:
    """Return a call as code: `grep(pattern='error')`; None and False are left out.

    `clean` sees each text before it is cut: half a secret could not be recognised.
    """
    lines = []
    for name, value in arguments.items():
        if isinstance(value, str):
            lines.append(f"{name}={one_line(clean(value))[:80]!r}")
        elif value is not None and value is not False:
            lines.append(f"{name}={value!r}")
    return f"{tool}({', '.join(lines)})"


def mentioned(entry: Invocation, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    """Return the nodes that a call refers to by text, oldest first."""
    said = [value for value in entry.arguments.values() if isinstance(value, str)]
    pattern = _BARE if entry.tool == "note" else _CITED
    texts = said if entry.tool == "recall" else [*said, entry.found]  # it repeats other results
    result = {name for text in texts for name in pattern.findall(text) if name in nodes}
    candidates = list(nodes.values())[-MAX_COMPARED:]
    result |= {node.id for node in candidates if _derives(said, node)}
    return tuple(name for name in nodes if name in result)[-MAX_REFERENCES:]


def holds(result: str, texts: Sequence[str]) -> bool:
    """Return whether a result has one of some texts in it, or one of them has a line of it."""
    whole = one_line(result)
    if any(text in whole for text in texts if len(text) >= SHORTEST_NAME):
        return True
    return any(line in text for line in _passages(result) for text in texts)


def one_line(text: str) -> str:
    """Return a text with its white space as single blanks."""
    return " ".join(text.split())


@dataclass(slots=True)
class Similarity:
    """Vectors of nodes by the encoder, made once each; and of hashed words where it is missing."""

    _embedder: Embedder | None
    _threshold: float
    _on: bool
    _failed: str = ""
    vectors: dict[str, bytes] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """`on`, or why nodes are not compared by meaning."""
        if not self._on:
            return "references by meaning are off"
        if self._failed:
            return self._failed
        return "on" if self._embedder is not None or vectors.is_installed() else NOT_INSTALLED

    def relate(self, nodes: list[Node]) -> None:
        """Fill in `similar` for nodes that have no vector yet, the newest of them."""
        new = [node for node in nodes if node.id not in self.vectors][-MAX_RELATED:]
        if self.state != "on" or not new:
            return
        try:
            for node in new:
                self.vectors[node.id] = pack(self._vector(_meaning(node)))
        except (RetrievalError, OSError, ValueError, RuntimeError) as exc:
            self._failed = f"the encoder failed: {exc}"[:200]
            return
        for node in new:
            node.similar = self._close_to(node, nodes)

    def closest(self, query: str, nodes: list[Node], most: int) -> list[tuple[float, Node]]:
        """Return the nodes closest to a query with their similarity, best first."""
        self.relate(nodes)
        known = [node for node in nodes if node.id in self.vectors]
        if known and self.state == "on":
            packed = [self.vectors[node.id] for node in known]
            scores = similarities(self._vector(query), packed)
        else:
            words, known = Words(), nodes[-MAX_COMPARED:]
            packed = [pack(words.embed(_meaning(node))) for node in known]
            scores = similarities(words.embed(query), packed)
        ranked = sorted(zip(scores, known, strict=True), key=lambda pair: -pair[0])
        return [(round(score, 3), node) for score, node in ranked[:most] if score > 0]

    def _close_to(self, node: Node, nodes: list[Node]) -> tuple[str, ...]:
        before = nodes[: nodes.index(node)][-MAX_COMPARED:]
        known = [old for old in before if old.id in self.vectors and old.id not in node.references]
        if not known or not node.found:
            return ()
        vector = memoryview(self.vectors[node.id]).cast("f")
        scores = similarities(vector, [self.vectors[item.id] for item in known])
        close = [
            (score, candidate.id)
            for score, candidate in zip(scores, known, strict=True)
            if score > self._threshold
        ]
        return tuple(name for _, name in sorted(close, reverse=True)[:MAX_REFERENCES])

    def _vector(self, text: str) -> Any:
        if self._embedder is not None:
            return self._embedder.embed(text)
        return vectors.shared_encoder().dense(text)


def _meaning(node: Node) -> str:
    """Return the text of a node that is compared: its result, else its call."""
    return one_line(node.found)[:LONGEST_MEANING] or node.call


def _derives(said: list[str], node: Node) -> bool:
    """Return whether an argument is a name that a node found, or has a line of its result."""
    lines = node.found.splitlines()
    if any(len(text) >= SHORTEST_NAME and text in lines for text in said):
        return True
    long = [text for text in said if len(text) >= SHORTEST_PASSAGE]
    return bool(long) and any(line in text for line in _passages(node.found) for text in long)


def _passages(found: str) -> list[str]:
    lines = (line.strip() for line in found.splitlines())
    return [line for line in lines if len(line) >= SHORTEST_PASSAGE][:20]


MARKS = {"analyzed": "[+]", "pending": "[?]", "stale": "[~]"}
DEEPEST = 8
"""Levels of indentation; deeper nodes stand below each other."""
MAX_SHOWN = 60
"""Nodes in the text; of more, the newest."""
SHOWN_RESULT = 100


def render(
    nodes: Sequence[Node], *, forgotten: int = 0, note: str = "", most: int = MAX_SHOWN
) -> str:
    """Return progress and tree, of the `most` newest nodes; `note` stands below them."""
    counts = [sum(node.status == status for node in nodes) for status in MARKS]
    shown = list(nodes)[-most:]
    left = len(nodes) - len(shown) + forgotten
    lines = [
        "## Research Context",
        "Progress: {} analyzed, {} pending, {} stale".format(*counts),
        "",
        *([f"({left:,} earlier calls are left out)"] if left else []),
    ]
    for level, node in in_tree_order(shown):
        indent = "  " * min(level, DEEPEST)
        lines.append(f"{indent}{MARKS.get(node.status, '[?]')} {node.id}: {node.call}")
        if found := one_line(node.found):
            cut = "..." if len(found) > SHOWN_RESULT else ""
            lines.append(f"{indent}    -> {found[:SHOWN_RESULT]}{cut}")
        if ids := dict.fromkeys((*node.references, *node.similar)):
            lines.append(f"{indent}    refs: {', '.join(ids)}")
    return "\n".join([*lines, *(["", note] if note else [])])


def in_tree_order(nodes: Sequence[Node]) -> list[tuple[int, Node]]:
    """Return nodes with their level, each parent before its children; no recursion."""
    known = {node.id for node in nodes}
    children: dict[str | None, list[Node]] = {}
    for node in nodes:
        children.setdefault(node.parent if node.parent in known else None, []).append(node)
    result: list[tuple[int, Node]] = []
    waiting = [(0, node) for node in reversed(children.get(None, []))]
    while waiting:
        level, node = waiting.pop()
        result.append((level, node))
        waiting += [(level + 1, child) for child in reversed(children.get(node.id, []))]
    return result


PREFIXES = dict(
    pair.split("=")
    for pair in """
    grep=G peek=P llm_query=L rlm_query=L llm_call=L list_dir=D web_fetch=W recall=R
    code_search=CS doc_search=DS note=N
""".split()
)
OTHER = "T"
"""The prefix of any other tool."""
UNTRACKED = frozenset({"FINAL", "SHOW_TOOLS"})
CHANGING = frozenset({"L", "R", "N"})
"""Prefixes of calls whose result may differ each time without anything having changed."""
ANALYZED, PENDING, STALE = "analyzed", "pending", "stale"
MAX_NODES = 500
"""Nodes that are kept; the oldest are forgotten first."""
SHOWN_FROM = 3
"""Nodes from which on the tree is shown."""
LONGEST_CALL, LONGEST_FOUND = 160, 400
MAX_DRAWN, DRAWN_RESULT = 100, 120
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
        """`embedder`: unset, the embedded encoder. `clean` removes secrets from kept texts.

        `fingerprint` returns what changes when a document of this name does; None if it is gone.
        """
        self._similarity = Similarity(embedder, semantic_threshold, use_semantic)
        self._clean, self._fingerprint = clean, fingerprint
        self._lock = forks.new_rlock()
        self._nodes: dict[str, Node] = {}
        self._numbers: Counter[str] = Counter()
        self._read = self.forgotten = 0
        """Calls that were read, and nodes that are no longer kept."""

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
            for item in new[-MAX_NODES:]:
                self.add(item)

    def add(self, entry: Invocation) -> Node | None:
        """Add one call; return its node, or None if calls of this tool are not tracked."""
        if entry.tool in UNTRACKED:
            return None
        with self._lock:
            node = self._node(entry)
            self._place(node)
            self._outdate_repeated(node)
            self._nodes[node.id] = node
            while len(self._nodes) > MAX_NODES:
                del self._nodes[next(iter(self._nodes))]
                self.forgotten += 1
            return node

    def conclude(self, texts: Iterable[str]) -> None:
        """Mark nodes as analyzed that an answer is from: it refers to them, or has their text."""
        with self._lock:
            wanted = [text for text in map(one_line, texts) if text]
            named = {name for text in wanted for name in _CITED.findall(text)}
            for node in self._nodes.values():
                is_used = node.id in named or holds(node.found, wanted)
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

    def tree(self, most: int = MAX_SHOWN) -> str | None:
        """Return the tree as text, of the `most` newest nodes, from 3 nodes on; None before."""
        with self._lock:
            if len(self._nodes) < SHOWN_FROM:
                return None
            self.refresh()
            self.relate()
            note = "" if self.semantic == "on" else f"References by text alone: {self.semantic}"
            return render(self.nodes, forgotten=self.forgotten, note=note, most=most)

    def graph(self) -> tuple[tuple[dict[str, object], ...], int]:
        """Return the newest nodes as short plain data, for a trajectory, and how many are left out.

        References by meaning are among them from 3 nodes on.
        """
        with self._lock:
            if self._nodes:
                self.refresh()
                self.relate()
            shown = list(self._nodes.values())[-MAX_DRAWN:]
            left_out = len(self._nodes) - len(shown) + self.forgotten
            return tuple(map(_drawn, shown)), left_out

    def reset(self) -> None:
        """Forget all nodes; numbers begin at 1 again."""
        with self._lock:
            self._nodes.clear()
            self._numbers.clear()
            self._read, self.forgotten = 0, 0
            self._similarity.vectors.clear()

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain data; from_dict() gives an equal context."""
        with self._lock:
            nodes = [asdict(node) for node in self._nodes.values()]
            return {"nodes": nodes, "numbers": dict(self._numbers), "forgotten": self.forgotten}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], **options: Any) -> ResearchContext:
        """Return a context with the nodes of to_dict(); `options` are those of the class."""
        result = cls(**options)
        result.load(data)
        return result

    def load(self, data: Mapping[str, Any]) -> None:
        """Replace all nodes by those of to_dict(); StateError if the data is not from there."""
        try:
            nodes = [_loaded(row) for row in data["nodes"][-MAX_NODES:]]
            numbers = {str(name): int(number) for name, number in data["numbers"].items()}
            forgotten = int(data["forgotten"])
        except (LookupError, TypeError, ValueError, AttributeError):
            raise StateError("the research of a saved environment is damaged") from None
        with self._lock:
            self.reset()
            self._nodes = {node.id: node for node in nodes}
            self._numbers.update(numbers)
            self.forgotten = forgotten

    def _node(self, entry: Invocation) -> Node:
        prefix = PREFIXES.get(entry.tool, OTHER)
        self._numbers[prefix] += 1
        path = entry.arguments.get("path")
        document = path if isinstance(path, str) else ""
        is_note, is_ok = entry.tool == "note", entry.outcome == "ok"
        call = entry.tool if is_note else call_text(entry.tool, entry.arguments, self._clean)
        result = str(entry.arguments.get("text", "")) if is_note else entry.found
        return Node(
            id=f"{prefix}{self._numbers[prefix]}",
            tool=entry.tool,
            call=call[:LONGEST_CALL],
            found=self._clean(result)[:LONGEST_FOUND] if is_ok else f"failed: {entry.outcome}",
            turn=entry.parent,
            outcome=entry.outcome,
            path=document,
            fingerprint=(self._fingerprint(document) or "") if document else "",
            digest=entry.digest,
            references=mentioned(entry, self._nodes),
        )

    def _place(self, node: Node) -> None:
        """Give a node its parent, and mark what it refers to as analyzed."""
        for name in node.references:
            referred = self._nodes[name]
            if referred.status == PENDING:
                referred.status = ANALYZED
            if referred.status == STALE:
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
            for name in node.references:
                if name in self._nodes and self._nodes[name].status == STALE:
                    node.status = STALE


def _drawn(node: Node) -> dict[str, object]:
    return {
        "id": node.id,
        "call": node.call,
        "found": one_line(node.found)[:DRAWN_RESULT],
        "parent": node.parent,
        "references": list(node.references),
        "similar": list(node.similar),
        "status": node.status,
    }


def _loaded(data: Mapping[str, Any]) -> Node:
    known = {field.name for field in fields(Node)}
    values = {name: value for name, value in data.items() if name in known}
    for name, value in values.items():
        is_list = name in {"references", "similar"}
        values[name] = tuple(map(str, value)) if is_list else value
        if not is_list and not isinstance(value, str) and (name, value) != ("parent", None):
            raise TypeError(name)
    return Node(**values)
