"""code_search and doc_search on the host: over the documents, and the sections of the context."""

from __future__ import annotations

import threading
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from atoll.environment import arguments

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.explore.index import ContextIndex
    from atoll.retrieval import Retriever

MOST_FOUND = 100
LARGEST_CONTEXT = 64 << 20
CONTEXT = "context"
MOST_WORDS = 50
"""Words of a query that a passage is chosen by."""
SHOWN = 300
"""Characters of a section that a hit shows; its lines tell where the rest is."""


class SearchTools:
    """The indexes, made when they are first asked for, and refreshed when documents change."""

    def __init__(
        self, documents: Path | None, index: ContextIndex | None, server: str | None
    ) -> None:
        self._documents, self._index, self._server = documents, index, server
        self._files: Retriever | None = None
        self._texts: Retriever | None = None
        self._lock = threading.Lock()

    def code_search(self, query: str, k: int = 10) -> list[dict[str, Any]]:
        """The units of code that fit best."""
        return self._search(query, k, "code")

    def doc_search(self, query: str, k: int = 10) -> list[dict[str, Any]]:
        """The sections that fit best."""
        return self._search(query, k, "doc")

    def close(self) -> None:
        """Let go of the indexes."""
        with self._lock:
            for one in (self._files, self._texts):
                if one is not None:
                    one.close()
            self._files = self._texts = None

    def _search(self, query: str, k: int, kind: str) -> list[dict[str, Any]]:
        wanted = arguments.text(query, "query")
        most = max(1, arguments.count(k, "k", MOST_FOUND))
        found = [one.search(wanted, k=most, kind=kind) for one in self._indexes(kind)]
        return [_told(unit, wanted) for unit in _in_turn(found)][:most]

    def _indexes(self, kind: str) -> list[Retriever]:
        with self._lock:
            indexes = [self._documents_index()]
            if kind == "doc":
                indexes.append(self._context_index())
        there = [one for one in indexes if one is not None]
        if not there:
            raise ValueError("there is nothing to search: no documents, and no context to section")
        return there

    def _documents_index(self) -> Retriever | None:
        if self._documents is None:
            return None
        if self._files is None:
            from atoll.retrieval import NextPlaid, Retriever  # noqa: PLC0415 - few search

            server = None if self._server is None else NextPlaid(self._server)
            self._files = Retriever(self._documents, server=server)
        return self._files

    def _context_index(self) -> Retriever | None:
        if self._index is None:
            return None
        if self._index.length > LARGEST_CONTEXT:
            if self._documents is not None:
                return None
            raise ValueError(
                f"the context has {self._index.length:,} characters; doc_search takes up to "
                f"{LARGEST_CONTEXT:,}: use grep"
            )
        if self._texts is None:
            from atoll.retrieval import Retriever  # noqa: PLC0415 - few search

            self._texts = Retriever({CONTEXT: self._index.text(0, self._index.length)})
        return self._texts


def _in_turn(found: list[Any]) -> list[Any]:
    """The best of each index first: their scores do not compare."""
    return [one for rank in zip_longest(*found) for one in rank if one is not None]


def _told(unit: Any, query: str) -> dict[str, Any]:
    return {
        "path": unit.path,
        "line": unit.start_line,
        "end_line": unit.end_line,
        "kind": unit.kind,
        "name": unit.name,
        "text": (unit.signature or passage(unit.text, query))[:SHOWN],
        "score": round(unit.score, 3),
    }


def passage(text: str, query: str) -> str:
    """A section from the line on that has most of the query's words, and the one before it."""
    words = list(dict.fromkeys(query.lower().split()))[:MOST_WORDS]
    lines = text.splitlines()
    best = max(range(len(lines)), key=lambda at: _shared(lines[at].lower(), words), default=0)
    return "\n".join(lines[max(0, best - 1) :])


def _shared(line: str, words: list[str]) -> int:
    return sum(word in line for word in words)
