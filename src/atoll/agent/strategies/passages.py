"""Find the passages of a context that speak of a question: by names and words, or by meaning.

A passage is a line of a log or a table, a few sentences of prose, or a definition in code. A search
takes the rarest words first, so that a gigabyte takes seconds.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.agent.retrieval import vectors
from atoll.agent.retrieval.words import related_words
from atoll.agent.strategies.question import stem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from atoll.search.coverage import CoverageLog
    from atoll.search.grep import Grep
    from atoll.search.index import ContextIndex

SAMPLE = 20_000
"""Characters by which the kind of a text is told."""
MAX_HITS, MAX_CANDIDATES = 400, 2_000
"""Lines of one word that are looked at, and lines of all words together."""
LONGEST_LINE, AROUND = 400, 700
"""Characters of a line that is shown whole, and on each side of a hit that are read."""
ENDS = 10
"""In prose, a sentence ends within every so many lines, and another begins there."""
DEFINITION_LINES = 12
RELATED = 0.5
"""Weight of a word that means the same as one of the question."""
MEANING_SECONDS, MEANING_PIECE, MEANING_CHARACTERS = 20.0, 500, 600_000
LEAST_MEANING = 0.25
"""Cosine from which a piece may speak of the question."""
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[A-Z\"'(\[0-9])|\n\s*\n")
_MODIFIERS = "pub|export|static|public|private|async|abstract|final"
_DEFINERS = "def|class|func|function|fn|struct|interface|type|const|let|var|enum|trait|impl|module"
_DEFINITION = rf"^\s*(?:(?:{_MODIFIERS})\s+)*(?:{_DEFINERS})\s+"
_CODE_LINE = re.compile(
    rf"^\s*(?:(?:{_MODIFIERS}|{_DEFINERS}|import|return|#include)\b|from \w+ import |[{{}}]\s*$)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A part of the context; `context[start:end]` is its text."""

    start: int
    end: int
    text: str
    score: float = 0.0
    matched: frozenset[str] = frozenset()
    """The patterns of names and words that it was found by."""
    place: str = ""
    """The file that it is from, if the context is made of files."""

    @property
    def shown(self) -> str:
        """The passage as a model sees it."""
        flat = self.text if self.place and "\n" in self.text else " ".join(self.text.split())
        return f"{self.place}: {flat}" if self.place else flat


class Passages:
    """Searches of one context; what is searched is noted in the ledger."""

    def __init__(self, index: ContextIndex, ledger: CoverageLog) -> None:
        self._index, self._ledger = index, ledger
        sample = index.text(0, SAMPLE)
        self.kind = kind_of(sample)
        """`lines`, `prose` or `code`."""

    def count(self, name: str) -> int:
        """Return how many lines contain a name, in any case."""
        return self._grep(_bounded(name), 1).total

    def search(self, names: Sequence[str], words: Iterable[str], k: int) -> list[Passage]:
        """Return the best k passages, best first; they contain the rarest of the names, if any.

        Words that mean the same as one of `words` count half.
        """
        stems = {stem(word): 1.0 for word in words}
        for word in related_words(list(stems)):
            stems.setdefault(stem(word), RELATED)
        patterns = {_bounded(name): 2.0 for name in names}
        patterns |= {_pattern(one): weight for one, weight in stems.items()}
        found = {pattern: self._grep(pattern, MAX_HITS) for pattern in patterns}
        lines = max(1.0, self._index.length / 80)
        weights = {
            pattern: weight * math.log1p(lines / found[pattern].total)
            for pattern, weight in patterns.items()
            if found[pattern].total
        }
        required = [_bounded(name) for name in names if _bounded(name) in weights]
        first = max(required, key=weights.__getitem__, default=None)
        spans: dict[tuple[int, int], None] = {}
        for pattern in [first] if first else sorted(weights, key=weights.__getitem__, reverse=True):
            for hit in found[pattern].hits:
                spans[self.around(hit.start)] = None
            if len(spans) > MAX_CANDIDATES:
                break
        return self._best(spans, weights, k)

    def definitions(self, name: str) -> list[Passage]:
        """Return where code defines a name: its first lines, as far as they are indented."""
        pattern = rf"{_DEFINITION}{re.escape(name)}\b"
        return [self._block(hit.start) for hit in self._grep(pattern, 5, case=True).hits]

    def by_meaning(self, text: str, k: int) -> list[Passage]:
        """Return the pieces nearest to a text by meaning; [] without a model for it."""
        index = self._index
        if not vectors.is_installed() or index.length > MEANING_CHARACTERS:
            return []
        encoder, until = vectors.shared_encoder(), time.monotonic() + MEANING_SECONDS
        asked, scored = encoder.dense(text), list[tuple[float, int]]()
        for at in range(0, index.length, MEANING_PIECE):
            piece = index.text(at, at + MEANING_PIECE + 80)
            scored.append((float(encoder.dense(piece) @ asked), at))
            if time.monotonic() > until:
                break
        self._ledger.scan(0, scored[-1][1] + MEANING_PIECE)
        best = [
            (score, at) for score, at in sorted(scored, reverse=True)[:k] if score >= LEAST_MEANING
        ]
        spans = [(self._line_start(at), at + MEANING_PIECE, score) for score, at in best]
        return [self._made(start, min(end, index.length), score) for start, end, score in spans]

    def paragraphs(self, names: Sequence[str], k: int) -> list[Passage]:
        """Return the text around the last places of names, more of it than a passage has."""
        hits = [hit for name in names for hit in self._grep(_bounded(name), MAX_HITS).hits[-k:]]
        spans = [(self.around(max(0, hit.start - AROUND))[0], hit.end + AROUND) for hit in hits]
        return [
            self._made(max(0, start), min(end, self._index.length), 0.0) for start, end in spans
        ]

    def sample(self, most: int) -> list[str]:
        """Return lines from all parts of the text."""
        step = max(1, self._index.length // most)
        starts = {self._line_start(at) for at in range(0, self._index.length, step)}
        return [self._index.text(*self.around(start)) for start in sorted(starts)]

    def around(self, at: int) -> tuple[int, int]:
        """Return the span of the passage that contains a character."""
        low = max(0, at - AROUND)
        text, place = self._index.text(low, at + AROUND), at - low
        start = text.rfind("\n", 0, place) + 1
        end = text.find("\n", place)
        end = len(text) if end < 0 else end
        if self.kind != "prose" and end - start <= LONGEST_LINE:
            return low + start, low + end
        ends = [match.end() for match in _SENTENCE_END.finditer(text)]
        before = [one for one in ends if one <= place]
        after = [one for one in ends if one > place]
        start = (
            before[-2] if len(before) > 1 else (before[-1] if before else (0 if not low else start))
        )
        end = after[1] if len(after) > 1 else (after[0] if after else len(text))
        return low + start, low + end

    def show(self, passages: Iterable[Passage]) -> None:
        """Note that a model is shown these."""
        for passage in passages:
            self._ledger.show(passage.start, passage.end)

    def _best(
        self, spans: Iterable[tuple[int, int]], weights: dict[str, float], k: int
    ) -> list[Passage]:
        compiled = [(re.compile(one, re.IGNORECASE), one) for one in weights]
        by_text: dict[str, Passage] = {}
        for start, end in spans:
            text = self._index.text(start, end)
            matched = frozenset(one for pattern, one in compiled if pattern.search(text))
            score = sum(weights[one] for one in matched)
            by_text[text] = Passage(  # of equal ones, the last
                start=start, end=end, text=text.strip("\n"), score=score, matched=matched
            )
        best = heapq.nlargest(k, by_text.values(), key=lambda one: (one.score, one.start))
        return [dataclasses.replace(one, place=self._place(one.start)) for one in best]

    def _made(self, start: int, end: int, score: float) -> Passage:
        text = self._index.text(start, end).strip("\n")
        return Passage(start=start, end=end, text=text, score=score, place=self._place(start))

    def _place(self, at: int) -> str:
        file = self._index.file_at(at)
        return file[0] if file else ""

    def _block(self, at: int) -> Passage:
        start = self._line_start(at)
        lines = self._index.text(start, start + 4_000).split("\n")
        margin = len(lines[0]) - len(lines[0].lstrip())
        size = 1
        while size < min(len(lines), DEFINITION_LINES):
            line = lines[size]
            if (
                line.strip()
                and len(line) - len(line.lstrip()) <= margin
                and line.strip() not in "})]"
            ):
                break
            size += 1
        text = "\n".join(lines[:size]).rstrip()
        return self._made(start, start + len(text), 1.0)

    def _line_start(self, at: int) -> int:
        low = max(0, at - AROUND)
        return low + self._index.text(low, at).rfind("\n") + 1

    def _grep(self, pattern: str, most: int, *, case: bool = False) -> Grep:
        found = self._index.grep(pattern, most=most, ignore_case=not case)
        self._ledger.scan(*found.scanned)
        return found


def kind_of(sample: str) -> str:
    """Return `code`, `prose` or `lines`, by the beginning of a text."""
    lines = [line for line in sample.split("\n") if line.strip()]
    if not lines:
        return "lines"
    if sum(bool(_CODE_LINE.match(line)) for line in lines) > len(lines) / 8:
        return "code"
    ends = re.findall(r"[.!?] +[A-Z]", sample)
    long = sum(len(line) > LONGEST_LINE for line in lines)
    wrapped = sum(line[0].islower() for line in lines) if ENDS * len(ends) > len(lines) else 0
    sentences = sum(line.rstrip()[-1] in '.!?"”' and " " in line for line in lines)
    many = len(ends) >= len(lines)
    is_prose = (
        long > len(lines) / 4 or wrapped > len(lines) / 4 or (many and sentences > len(lines) / 2)
    )
    return "prose" if is_prose else "lines"


def _bounded(name: str) -> str:
    """Return a pattern for a name as a whole: A-12 is not in A-123."""
    words = r"\s+".join(map(re.escape, name.split()))
    before = r"\b" if name[:1].isalnum() else ""
    return before + words + (r"\b" if name[-1:].isalnum() else "")


def _pattern(word: str) -> str:
    """Return a pattern for the beginning of a word; a short word has to be whole."""
    return rf"\b{re.escape(word)}" + (r"\b" if len(word) < 4 else "")
