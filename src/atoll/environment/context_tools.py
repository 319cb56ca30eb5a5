"""peek, grep and list_dir on the host: over the context, the documents, what was spilled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.environment import arguments

if TYPE_CHECKING:
    from atoll.environment.documents import Documents
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
        ledger: Ledger,
        shown: Shown,
        max_results: int,
    ) -> None:
        self._index, self._documents = index, documents
        self._ledger, self._shown, self._most = ledger, shown, max_results

    def peek(self, n: int, start: int = 0, path: str | None = None) -> dict[str, Any]:
        """`n` characters from `start` on; a start below 0 counts from the end."""
        index = self._find(path)
        if index is None:
            return {ELSEWHERE: True}
        at = arguments.place(start, index.length)
        end = min(index.length, at + arguments.count(n, "n", MOST_PEEKED))
        text = index.text(at, end)
        if path is None:
            self._ledger.scan(at, end)
            self._shown.note([(at, text)])
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
        if path is None:
            self._ledger.scan(*found.scanned)
            self._shown.note([(hit.at, hit.text) for hit in found.hits])
        hits = [{name: getattr(hit, name) for name in HIT} for hit in found.hits]
        return {"hits": hits, "total": found.total, "counted": found.counted}

    def list_dir(self, path: str = ".") -> dict[str, Any]:
        """The documents in a folder; no names if there is no such folder here."""
        folder = arguments.text(path, "path")
        return {"names": self._documents.names("" if folder == "." else folder)}

    def _find(self, path: str | None) -> ContextIndex | None:
        if path is not None:
            return self._documents.find(arguments.text(path, "path"))
        if self._index is None:
            raise ValueError("there is no context: give a path, as list_dir() shows them")
        return self._index
