"""peek, grep and list_dir on the host: over the context, the documents, what was spilled."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.chains.prefetch import note
from atoll.agent.environment.tools import arguments
from atoll.guest.agent.explorer import ELSEWHERE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.agent.environment.tools.documents import Documents
    from atoll.agent.environment.tools.taint import Sources
    from atoll.search.coverage import CoverageLog
    from atoll.search.grep import Hit
    from atoll.search.index import ContextIndex
    from atoll.search.spans_shown import Shown

MAX_PEEKED = 1_000_000
MAX_TOLD = 3
"""Calls of one cell whose lists were cut, as far as a model is told of them."""
LONGEST_PATTERN = 60
MAX_WORDS = 6
"""Words of a pattern that was not found whose lines are counted."""
LARGEST_COUNTED = 64 << 20
"""Characters of a context up to which they are: each count reads it once."""
_WORD, _ESCAPED = re.compile(r"\w{3,40}"), re.compile(r"\\.", re.DOTALL)


@dataclass(slots=True)
class CutLists:
    """Lists of hits of the turn that runs now which were cut: a model must be told of them."""

    _cut: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=MAX_TOLD))
    """How a list itself says the number, and a line that does."""
    _said: dict[str, bool] = field(default_factory=dict)
    """Remarks of this session, and whether a model was told of each."""

    def note(
        self, call: str, things: str, hits: Sequence[Any], total: int, *, counted: bool
    ) -> None:
        """Remember a call whose list has fewer things than it found."""
        if counted and len(hits) >= total:
            return
        number = f"{total:,}" if counted else f"at least {total:,}"
        notice = f"({call} found {number} {things}, and its list holds {len(hits):,} of them"
        self._cut.append((number, f"{notice}: .total is the number)" if counted else f"{notice})"))

    def say_once(self, remark: str) -> None:
        """Tell a model something on how a tool works here, the first time."""
        if len(self._said) < MAX_TOLD:
            self._said.setdefault(remark, False)

    def since(self, text: str) -> list[str]:
        """Return a line for each such call since the last time, and forget them; new remarks too.

        Calls are left out whose number of hits `text` is, or says.
        """
        lines: dict[str, None] = {}
        whole = text.strip()
        while self._cut:
            number, line = self._cut.popleft()
            if f"{number} found" not in text and whole != number.replace(",", ""):
                lines[line] = None
        for remark, was_said in self._said.items():
            if not was_said:
                self._said[remark] = True
                lines[f"({remark})"] = None
        return list(lines)


@dataclass(slots=True, kw_only=True)
class ContextTools:
    """Tools that run in threads. What they give of the context is noted in the ledger."""

    index: ContextIndex | None
    documents: Documents
    ledger: CoverageLog
    shown: Shown
    sources: Sources
    cut: CutLists
    max_results: int

    def peek(self, n: int, start: int = 0, path: str | None = None) -> dict[str, object]:
        """`n` characters from `start` on; a start below 0 counts from the end."""
        index = self._find(path)
        if index is None:
            return {ELSEWHERE: True}
        at = arguments.place(start, index.length)
        end = min(index.length, at + arguments.count(n, "n", MAX_PEEKED))
        text = index.text(at, end)
        self._note(path, (at, end), [(at, text)])
        return {"text": text}

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        ignore_case: bool = False,  # noqa: FBT001, FBT002
    ) -> dict[str, object]:
        """The lines that match, up to max_grep_results."""
        index = self._find(path)
        if index is None:
            return {ELSEWHERE: True, "most": self.max_results}
        wanted = arguments.text(pattern, "pattern")
        result = index.grep(wanted, most=self.max_results, ignore_case=bool(ignore_case))
        self._note(path, result.scanned, [(hit.at, hit.text) for hit in result.hits])
        call = f"grep({wanted[:LONGEST_PATTERN]!r})"
        self.cut.note(call, "lines", result.hits, result.total, counted=result.counted)
        hits = [_hit(hit, index.file_at(hit.start)) for hit in result.hits]
        words = {} if result.total else _word_counts(index, wanted)
        return {"hits": hits, "total": result.total, "counted": result.counted, "words": words}

    def list_dir(self, path: str = ".") -> dict[str, object]:
        """The documents in a folder; no names if the folder does not exist here."""
        folder = arguments.text(path, "path")
        return {"names": self.documents.names("" if folder == "." else folder)}

    def _note(
        self, path: str | None, scanned: tuple[int, int], pieces: list[tuple[int, str]]
    ) -> None:
        """Remember what was read: of the context where, of a document that it is untrusted."""

        def remember() -> None:
            if path is None:
                self.ledger.scan(*scanned)
                self.shown.note(pieces)
            else:
                self.sources.note(f"document {path}", [text for _, text in pieces])

        note(remember)

    def _find(self, path: str | None) -> ContextIndex | None:
        if path is not None:
            return self.documents.find(arguments.text(path, "path"))
        if self.index is None:
            raise ValueError("there is no context: give a path, as list_dir() shows them")
        return self.index


def _word_counts(index: ContextIndex, pattern: str) -> dict[str, int]:
    """Return how many lines have each word of a pattern that was not found; not those with none.

    A model takes a phrase of the question for one of the text: this says which word to search for.
    Of a list with commas, its parts are counted.
    """
    plain = _ESCAPED.sub(" ", pattern)
    parts = [part.strip() for part in plain.split(",") if part.strip()]
    words = dict.fromkeys(parts if len(parts) > 1 else _WORD.findall(plain))
    if len(words) <= 1 or index.length > LARGEST_COUNTED:
        return {}
    counts = {
        word: index.grep(word, most=1, literal=True).total for word in islice(words, MAX_WORDS)
    }
    return {repr(word) if " " in word else word: count for word, count in counts.items() if count}


def _hit(hit: Hit, file: tuple[str, int] | None) -> dict[str, object]:
    """Return a hit as data. Where it is from a file of a folder, with its path and line there."""
    data: dict[str, object] = {
        "line": hit.line,
        "start": hit.start,
        "end": hit.end,
        "text": hit.text,
    }
    if file is None:
        return data
    path, header = file
    return {"path": path, **data, "line": hit.line - header}
