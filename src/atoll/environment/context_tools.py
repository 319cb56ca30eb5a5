"""peek, grep and list_dir on the host: over the context, the documents, what was spilled."""

from __future__ import annotations

import re
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

from atoll.environment import arguments
from atoll.environment.chain_prefetch import note

if TYPE_CHECKING:
    from atoll.environment.documents import Documents
    from atoll.environment.taint import Sources
    from atoll.explore.grep import Grep, Hit
    from atoll.explore.index import ContextIndex
    from atoll.explore.ledger import Ledger
    from atoll.explore.spans_shown import Shown

MOST_PEEKED = 1_000_000
HIT = ("line", "start", "end", "text")
ELSEWHERE = "elsewhere"
"""The host has nothing of that name; the guest may."""
MOST_TOLD = 3
"""Searches of one cell whose lists were cut, as far as a model is told of them."""
LONGEST_PATTERN = 60
MOST_WORDS = 6
"""Words of a pattern that was not found whose lines are counted."""
LARGEST_COUNTED = 64 << 20
"""Characters of a context up to which they are: each count reads it once."""
_WORD, _ESCAPED = re.compile(r"\w{3,40}"), re.compile(r"\\.", re.DOTALL)


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
        self._cut: deque[tuple[int, str]] = deque(maxlen=MOST_TOLD)

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
        if found.more:
            self._cut.append((found.total, _cut(wanted, found)))
        hits = [_hit(hit, index.file_at(hit.start)) for hit in found.hits]
        words = {} if found.total else _word_counts(index, wanted)
        return {"hits": hits, "total": found.total, "counted": found.counted, "words": words}

    def cut_since(self, text: str) -> list[str]:
        """Return a line for each search since the last time whose list was cut, and forget them.

        Searches are left out whose number of hits `text` is, or says.
        """
        cut = [self._cut.popleft() for _ in range(len(self._cut))]
        untold = (n for n in cut if f"{n[0]:,} found" not in text and text.strip() != str(n[0]))
        return list(dict.fromkeys(line for _, line in untold))

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


def _word_counts(index: ContextIndex, pattern: str) -> dict[str, int]:
    """Return how many lines have each word of a pattern that was not found; not those with none.

    A model takes a phrase of the question for one of the text: this says which word to search for.
    """
    words = dict.fromkeys(_WORD.findall(_ESCAPED.sub(" ", pattern)))
    if len(words) <= 1 or index.length > LARGEST_COUNTED:
        return {}
    counts = {
        word: index.grep(word, most=1, literal=True).total for word in islice(words, MOST_WORDS)
    }
    return {word: count for word, count in counts.items() if count}


def _cut(pattern: str, found: Grep) -> str:
    least = "" if found.counted else "at least "
    return (
        f"(grep({pattern[:LONGEST_PATTERN]!r}) found {least}{found.total:,} lines, and its list "
        f"holds {len(found.hits):,} of them: .total is the number)"
    )


def _hit(hit: Hit, file: tuple[str, int] | None) -> dict[str, Any]:
    """Return a hit as data. Where it is from a file of a folder, with its path and line there."""
    told = {name: getattr(hit, name) for name in HIT}
    if file is None:
        return told
    path, header = file
    return {"path": path, **told, "line": hit.line - header}
