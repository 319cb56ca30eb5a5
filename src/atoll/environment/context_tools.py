"""peek, grep and list_dir on the host: over the context, the documents, what was spilled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.environment import arguments
from atoll.environment.chain_prefetch import note

if TYPE_CHECKING:
    from atoll.environment.documents import Documents
    from atoll.environment.taint import Sources
    from atoll.explore.index import ContextIndex
    from atoll.explore.ledger import Ledger
    from atoll.explore.spans_shown import Shown

MOST_PEEKED = 1_000_000
HIT = ("line", "start", "end", "text")
ELSEWHERE = "elsewhere"
"""The host has nothing of that name; the guest may."""


class ContextTools:
    """Tools that run in threads. What they give of the context is noted in the ledger."""

    def __init__(
        self,
        index: ContextIndex | None,
        documents: Documents,
        *,
        ledger: Ledger,
        shown: Shown,
        sources: Sources,
        max_results: int,
    ) -> None:
        self._index, self._documents, self._sources = index, documents, sources
        self._ledger, self._shown, self._most = ledger, shown, max_results

    def peek(self, n: int, start: int = 0, path: str | None = None) -> dict[str, Any]:
        """`n` characters from `start` on; a start below 0 counts from the end."""
        index = self._find(path)
        if index is None:
            return {ELSEWHERE: True}
        at = arguments.place(start, index.length)
        end = min(index.length, at + arguments.count(n, "n", MOST_PEEKED))
        text = index.text(at, end)
        self._note(path, (at, end), [(at, text)])
        return {"text": text}

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        ignore_case: bool = False,  # noqa: FBT001, FBT002
    ) -> dict[str, Any]:
        """The lines that match, up to max_grep_results."""
        index = self._find(path)
        if index is None:
            return {ELSEWHERE: True, "most": self._most}
        wanted = arguments.text(pattern, "pattern")
        found = index.grep(wanted, most=self._most, ignore_case=bool(ignore_case))
        self._note(path, found.scanned, [(hit.at, hit.text) for hit in found.hits])
        hits = [{name: getattr(hit, name) for name in HIT} for hit in found.hits]
        return {"hits": hits, "total": found.total, "counted": found.counted}

    def list_dir(self, path: str = ".") -> dict[str, Any]:
        """The documents in a folder; no names if there is no such folder here."""
        folder = arguments.text(path, "path")
        return {"names": self._documents.names("" if folder == "." else folder)}

    def _note(
        self, path: str | None, scanned: tuple[int, int], pieces: list[tuple[int, str]]
    ) -> None:
        """Remember what was read: of the context where, of a document that it is untrusted."""

        def remember() -> None:
            if path is None:
                self._ledger.scan(*scanned)
                self._shown.note(pieces)
            else:
                self._sources.note(f"document {path}", [text for _, text in pieces])

        note(remember)

    def _find(self, path: str | None) -> ContextIndex | None:
        if path is not None:
            return self._documents.find(arguments.text(path, "path"))
        if self._index is None:
            raise ValueError("there is no context: give a path, as list_dir() shows them")
        return self._index
