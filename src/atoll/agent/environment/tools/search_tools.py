"""code_search, doc_search and colgrep on the host: over documents, and sections of the context."""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.tools import arguments
from atoll.concurrency import forks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from atoll.agent.environment.tools.context_tools import CutLists
    from atoll.agent.retrieval import Hits, Retriever
    from atoll.search.index import ContextIndex

    Search = Callable[[str, int], list[dict[str, object]]]

MAX_FOUND = 100
INDEXED_CONTEXT = 4 << 20
"""Characters of a context whose sections are indexed; a longer one is searched for the words."""
MAX_UNITS = 100_000
CONTEXT = "context"
NO_MODEL = "search for words that the text may use; by meaning needs the extra `semantic`"
MAX_WORDS = 50
"""Words of a query that a passage is chosen by."""
SHOWN = 300
"""Characters of a section that a hit shows; its lines tell where the rest is."""


class SearchTools:
    """The indexes, made when they are first asked for, and refreshed when documents change."""

    def __init__(
        self,
        documents: Path | None,
        index: ContextIndex | None,
        server: str | None,
        remarks: CutLists,
    ) -> None:
        self._documents, self._index, self._server = documents, index, server
        self._remarks = remarks
        self._files: Retriever | None = None
        self._texts: Retriever | None = None
        self._late: Retriever | None = None
        self._lock = forks.new_lock()

    def code_search(self, query: str, k: int = 10) -> list[dict[str, object]]:
        """The units of code that fit best."""
        return self._search(query, k, "code")

    def doc_search(self, query: str, k: int = 10) -> list[dict[str, object]]:
        """The sections that fit best."""
        return self._search(query, k, "doc")

    def colgrep(
        self, query: str, pattern: str | None = None, k: int = 10
    ) -> list[dict[str, object]]:
        """The units of code that fit best token by token; with a pattern, those that it matches."""
        from atoll.agent.retrieval.retriever import colgrep, open_index  # noqa: PLC0415 - few search

        wanted = arguments.text(query, "query")
        most = max(1, arguments.count(k, "k", MAX_FOUND))
        if self._documents is None:
            raise ValueError("there are no documents to search: use grep for the context")
        with self._lock:
            if self._late is None:
                self._late = open_index(self._documents, self._server)
            index = self._late
        sought = None if pattern is None else arguments.text(pattern, "pattern")
        return self._shown(colgrep(index, wanted, sought, most), query, "colgrep")

    def close(self) -> None:
        """Let go of the indexes."""
        with self._lock:
            for index in (self._files, self._texts, self._late):
                if index is not None:
                    index.close()
            self._files = self._texts = self._late = None

    def _search(self, query: str, k: int, kind: str) -> list[dict[str, object]]:
        wanted = arguments.text(query, "query")
        most = max(1, arguments.count(k, "k", MAX_FOUND))
        result = [search(wanted, most) for search in self._searches(kind)]
        if not result:
            raise ValueError("there is nothing to search: no documents, and no context to section")
        return _in_turn(result)[:most]

    def _searches(self, kind: str) -> list[Search]:
        """Return what answers: the documents' index, and for documents the context's."""
        with self._lock:
            searches: list[Search] = []
            if self._documents is not None:
                searches.append(partial(self._units, self._documents_index(), kind))
            if kind == "doc" and self._index is not None:
                if self._index.length > INDEXED_CONTEXT:
                    searches.append(partial(_passages, self._index))
                else:
                    searches.append(partial(self._units, self._context_index(self._index), kind))
        return searches

    def _units(self, retriever: Retriever, kind: str, query: str, most: int) -> list[Any]:
        return self._shown(retriever.search(query, k=most, kind=kind), query, f"{kind}_search")

    def _shown(self, hits: Hits, query: str, call: str) -> list[dict[str, object]]:
        """Return hits for a guest; a model is told once if they were found by words alone."""
        if hits.mode_used == "fts":
            self._remarks.say_once(f"{call} compared words alone: {NO_MODEL}")
        return [_shown_unit(unit, query) for unit in hits]

    def _documents_index(self) -> Retriever:
        if self._files is None:
            from atoll.agent.retrieval import NextPlaid, Retriever, find_server  # noqa: PLC0415 - few search

            server = find_server() if self._server is None else NextPlaid(self._server)
            self._files = Retriever(self._documents or ".", server=server)
        return self._files

    def _context_index(self, index: ContextIndex) -> Retriever:
        if self._texts is None:
            from atoll.agent.retrieval import Bounds, Retriever  # noqa: PLC0415 - few search

            bounds = Bounds(file_bytes=4 * INDEXED_CONTEXT, units_per_file=MAX_UNITS)
            self._texts = Retriever({CONTEXT: index.text(0, index.length)}, bounds=bounds)
        return self._texts


def _passages(index: ContextIndex, query: str, most: int) -> list[dict[str, object]]:
    from atoll.agent.retrieval.context_search import search_context  # noqa: PLC0415 - few search

    return [
        {
            "path": CONTEXT,
            "line": index.line_of(hit.start),
            "start": hit.start,
            "end": hit.end,
            "text": passage(hit.text, query)[:SHOWN],
            "score": round(hit.score, 3),
        }
        for hit in search_context(index, query, most)
    ]


def _in_turn(result: list[Any]) -> list[Any]:
    """The best of each index first: their scores do not compare."""
    return [hit for rank in zip_longest(*result) for hit in rank if hit is not None]


def _shown_unit(unit: Any, query: str) -> dict[str, object]:
    """Return a hit; of one in the context, `context[start:end]` is all of it."""
    place = {"start": unit.start, "end": unit.end} if unit.path == CONTEXT else {}
    return {
        "path": unit.path,
        "line": unit.start_line,
        "end_line": unit.end_line,
        **place,
        "kind": unit.kind,
        "name": unit.name,
        "text": (unit.signature or passage(unit.text, query))[:SHOWN],
        "score": round(unit.score, 3),
    }


def passage(text: str, query: str) -> str:
    """A section from the line on that has most of the query's words, and the one before it."""
    words = list(dict.fromkeys(query.lower().split()))[:MAX_WORDS]
    lines = text.splitlines()
    best = max(range(len(lines)), key=lambda at: _shared(lines[at].lower(), words), default=0)
    return "\n".join(lines[max(0, best - 1) :])


def _shared(line: str, words: list[str]) -> int:
    return sum(word in line for word in words)
