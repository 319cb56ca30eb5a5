"""How nodes of a research context refer to each other: by text, and by meaning."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from atoll.agent.memory.vectors import Words, pack, similarities
from atoll.agent.retrieval import encoder
from atoll.errors import RetrievalError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from atoll.agent.environment.research.tree_state import Node
    from atoll.agent.environment.tools.invocations import Invocation
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
MOST_REFERENCES = 8
MOST_RELATED = 64
"""Nodes that are compared by meaning in one go: each takes the encoder 10 to 30 ms."""
MOST_COMPARED = 200
"""Earlier nodes, the newest, that a call is compared with."""
LONGEST_MEANING = 300
NOT_INSTALLED = "the extra `semantic` is not installed"


def call_text(tool: str, arguments: Mapping[str, Any], clean: Callable[[str], str] = str) -> str:
    """Return a call as code: `grep(pattern='error')`; what is None or False is left out.

    `clean` sees each text before it is cut: half a secret could not be told from other text.
    """
    given = {name: one for name, one in arguments.items() if one is not None and one is not False}
    told = (f"{name}={_shown(one, clean)}" for name, one in given.items())
    return f"{tool}({', '.join(told)})"


def mentioned(one: Invocation, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    """Return the nodes that a call refers to by text, oldest first."""
    said = [value for value in one.arguments.values() if isinstance(value, str)]
    pattern = _BARE if one.tool == "note" else _CITED
    texts = said if one.tool == "recall" else [*said, one.found]  # it repeats other results
    found = {name for text in texts for name in pattern.findall(text) if name in nodes}
    candidates = list(nodes.values())[-MOST_COMPARED:]
    found |= {node.id for node in candidates if _derives(said, node)}
    return tuple(name for name in nodes if name in found)[-MOST_REFERENCES:]


def cited(texts: Sequence[str], nodes: Container[str]) -> set[str]:
    """Return the ids of nodes that some prose refers to, as in "based on P2"."""
    return {name for text in texts for name in _CITED.findall(text) if name in nodes}


def holds(found: str, texts: Sequence[str]) -> bool:
    """Return whether a result has one of some texts in it, or one of them has a line of it."""
    whole = one_line(found)
    if any(text in whole for text in texts if len(text) >= SHORTEST_NAME):
        return True
    return any(line in text for line in _passages(found) for text in texts)


def one_line(text: str) -> str:
    """Return a text with its white space as single blanks."""
    return " ".join(text.split())


class Similarity:
    """Vectors of nodes by the encoder, made once each; and of hashed words where it is missing."""

    def __init__(self, embedder: Embedder | None, threshold: float, *, on: bool) -> None:
        self._embedder, self._threshold, self._on = embedder, threshold, on
        self._failed = ""
        self._vectors: dict[str, bytes] = {}

    @property
    def state(self) -> str:
        """`on`, or why there is none."""
        if not self._on:
            return "references by meaning are off"
        if self._failed:
            return self._failed
        return "on" if self._embedder is not None or encoder.is_installed() else NOT_INSTALLED

    def relate(self, nodes: list[Node]) -> None:
        """Fill in `similar` for nodes that have no vector yet, the newest of them."""
        new = [node for node in nodes if node.id not in self._vectors][-MOST_RELATED:]
        if self.state != "on" or not new:
            return
        try:
            for node in new:
                self._vectors[node.id] = pack(self._vector(_meaning(node)))
        except (RetrievalError, OSError, ValueError, RuntimeError) as exc:
            self._failed = f"the encoder failed: {exc}"[:200]
            return
        for node in new:
            node.similar = self._close_to(node, nodes)

    def closest(self, query: str, nodes: list[Node], most: int) -> list[tuple[float, Node]]:
        """Return the nodes closest to a query with their similarity, best first."""
        self.relate(nodes)
        known = [node for node in nodes if node.id in self._vectors]
        if known and self.state == "on":
            packed = [self._vectors[node.id] for node in known]
            scores = similarities(self._vector(query), packed)
        else:
            words, known = Words(), nodes[-MOST_COMPARED:]
            packed = [pack(words.embed(_meaning(node))) for node in known]
            scores = similarities(words.embed(query), packed)
        ranked = sorted(zip(scores, known, strict=True), key=lambda pair: -pair[0])
        return [(round(score, 3), node) for score, node in ranked[:most] if score > 0]

    def forget(self) -> None:
        """Drop all vectors."""
        self._vectors.clear()

    def _close_to(self, node: Node, nodes: list[Node]) -> tuple[str, ...]:
        before = nodes[: nodes.index(node)][-MOST_COMPARED:]
        known = [one for one in before if one.id in self._vectors and one.id not in node.references]
        if not known or not node.found:
            return ()
        vector = memoryview(self._vectors[node.id]).cast("f")
        scores = similarities(vector, [self._vectors[one.id] for one in known])
        close = [
            (score, one.id)
            for score, one in zip(scores, known, strict=True)
            if score > self._threshold
        ]
        return tuple(name for _, name in sorted(close, reverse=True)[:MOST_REFERENCES])

    def _vector(self, text: str) -> Any:
        if self._embedder is not None:
            return self._embedder.embed(text)
        return encoder.shared_encoder().dense(text)


def _meaning(node: Node) -> str:
    """Return what is compared of a node: its result, or its call if it has none."""
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


def _shown(value: Any, clean: Callable[[str], str]) -> str:
    return repr(one_line(clean(value))[:80]) if isinstance(value, str) else repr(value)
