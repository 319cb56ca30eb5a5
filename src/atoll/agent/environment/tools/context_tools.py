"""peek, grep and list_dir on the host: over the context, the documents, what was spilled."""

from __future__ import annotations

import re
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.chains.prefetch import note
from atoll.agent.environment.tools import arguments
from atoll.guest.agent.explorer import ELSEWHERE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.agent.environment.tools.documents import Documents
    from atoll.agent.environment.tools.taint import Sources
    from atoll.search.coverage import Ledger
    from atoll.search.grep import Hit
    from atoll.search.index import ContextIndex
    from atoll.search.spans_shown import Shown

MOST_PEEKED = 1_000_000
HIT = ("line", "start", "end", "text")
MOST_TOLD = 3
"""Calls of one cell whose lists were cut, as far as a model is told of them."""
LONGEST_PATTERN = 60
MOST_WORDS = 6
"""Words of a pattern that was not found whose lines are counted."""
LARGEST_COUNTED = 64 << 20
"""Characters of a context up to which they are: each count reads it once."""
_WORD, _ESCAPED = re.compile(r"\w{3,40}"), re.compile(r"\\.", re.DOTALL)


class CutLists:
    """Lists of hits of the turn that runs now which were cut: a model must be told of them."""

    def __init__(self) -> None:
        self._cut: deque[tuple[str, str]] = deque(maxlen=MOST_TOLD)
        """How a list itself says the number, and a line that does."""
        self._said: dict[str, bool] = {}
        """Remarks of this session, and whether a model was told of each."""

    def note(
        self, call: str, things: str, hits: Sequence[Any], total: int, *, counted: bool
    ) -> None:
        """Remember a call whose list has fewer things than it found."""
        if counted and len(hits) >= total:
            return
        number = f"{total:,}" if counted else f"at least {total:,}"
        told = f"({call} found {number} {things}, and its list holds {len(hits):,} of them"
        self._cut.append((number, f"{told}: .total is the number)" if counted else f"{told})"))

    def say_once(self, remark: str) -> None:
        """Tell a model something on how a tool works here, the first time."""
        if len(self._said) < MOST_TOLD:
            self._said.setdefault(remark, False)

    def since(self, text: str) -> list[str]:
        """Return a line for each such call since the last time, and forget them; new remarks too.

        Calls are left out whose number of hits `text` is, or says.
        """
        cut = [self._cut.popleft() for _ in range(len(self._cut))]
        whole = text.strip()
        untold = (
            line
            for number, line in cut
            if f"{number} found" not in text and whole != number.replace(",", "")
        )
        new = [remark for remark, told in self._said.items() if not told]
        self._said.update(dict.fromkeys(new, True))
        return [*dict.fromkeys(untold), *(f"({remark})" for remark in new)]


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
        cut: CutLists,
        max_results: int,
    ) -> None:
        self._index, self._documents, self._sources = index, documents, sources
        self._ledger, self._shown, self._most = ledger, shown, max_results
        self._cut = cut

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
        call = f"grep({wanted[:LONGEST_PATTERN]!r})"
        self._cut.note(call, "lines", found.hits, found.total, counted=found.counted)
        hits = [_hit(hit, index.file_at(hit.start)) for hit in found.hits]
        words = {} if found.total else _word_counts(index, wanted)
        return {"hits": hits, "total": found.total, "counted": found.counted, "words": words}

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
    Of a list with commas, its parts are counted.
    """
    plain = _ESCAPED.sub(" ", pattern)
    parts = [one.strip() for one in plain.split(",") if one.strip()]
    words = dict.fromkeys(parts if len(parts) > 1 else _WORD.findall(plain))
    if len(words) <= 1 or index.length > LARGEST_COUNTED:
        return {}
    counts = {
        word: index.grep(word, most=1, literal=True).total for word in islice(words, MOST_WORDS)
    }
    return {repr(word) if " " in word else word: count for word, count in counts.items() if count}


def _hit(hit: Hit, file: tuple[str, int] | None) -> dict[str, Any]:
    """Return a hit as data. Where it is from a file of a folder, with its path and line there."""
    told = {name: getattr(hit, name) for name in HIT}
    if file is None:
        return told
    path, header = file
    return {"path": path, **told, "line": hit.line - header}
