"""Finds which characters of a context an observation shows to a model.

Tools return pieces of the context to guest code, which may print them, cut them or drop them. Only
text that occurs in the observation, character by character, counts as shown. Long passages, such as
context[a:b] in a prompt, are matched first: a few characters give their place in the context, and
the comparison continues from there. The rest is matched line by line.

SECURITY: context and observation may both be crafted to make this slow. Each comparison uses up a
budget of characters; when it is empty, too little counts as shown, never too much.
"""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from atoll.concurrency import forks
from atoll.errors import ExecutionTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from atoll.search.index import ContextIndex

    Piece = tuple[int, str]
    """The offset in the context, and the text."""
    Span = tuple[int, int]

MAX_PIECES, MAX_CHARACTERS = 2_000, 4 << 20
"""Most pieces, and characters of pieces, that are kept; the oldest are dropped."""
LONGEST_OBSERVATION = 1 << 20
TELLING = 24
"""Least characters of a partial line that identifies its place in the context."""
MAX_LOOKUPS = 50
LARGEST_LOOKUP = 64 << 20
"""Largest context in which single lines are searched for that no tool returned. Passages are
searched for in a context of any size."""
MAX_COMPARED = 48 << 20
"""Characters that may be compared for one observation."""
LOOKUP_SECONDS, PATIENCE = 2.0, 10
"""CPU seconds of this thread for the lookups of one text, and how often that by the clock: how
much counts as shown must not depend on what else the machine does."""
PROBE, PASSAGE = 64, 200
"""Characters that give a passage's place in the context, and least characters of a passage."""
STRIDE, BLOCK = 1_000, 1 << 16
_MAX_LINES = 20_000
_PLACE = re.compile(r"(?<=\d) \[\d{1,20}:\d{1,20}\] ")
"""The text between the line number and the line of a hit, as the guest's grep prints it."""


@dataclass(slots=True)
class Shown:
    """Keeps the pieces that tools returned, and finds which a text shows; thread-safe."""

    _index: ContextIndex | None
    _lock: forks.Lock = field(default_factory=forks.new_lock)
    _pieces: deque[Piece] = field(default_factory=deque)
    _characters: int = 0
    _last: int = 0
    """Where the last passage ended: code mostly takes a context apart from its beginning on."""

    def note(self, pieces: Iterable[Piece]) -> None:
        """Add pieces that a tool returned; the oldest are dropped if there are too many."""
        with self._lock:
            for start, text in pieces:
                self._pieces.append((start, text[:MAX_CHARACTERS]))
                self._characters += len(self._pieces[-1][1])
                while len(self._pieces) > MAX_PIECES or self._characters > MAX_CHARACTERS:
                    self._characters -= len(self._pieces.popleft()[1])

    def match(self, observation: str, *, until: float | None = None) -> tuple[Span, ...]:
        """Return the ranges of the context that occur in an observation.

        At `until`, by the CPU time of this thread, the search returns what it found so far.
        """
        with self._lock:
            pieces = list(self._pieces)
        if not pieces and len(observation) < TELLING:
            return ()  # too short to tell where it is from
        pieces.reverse()  # the newest pieces are the most likely to be shown
        lookup = _Lookup(self._index, until, self._last)
        passages, rest = lookup.passages(observation[:LONGEST_OBSERVATION])
        seen = _Observation(rest)
        spans = passages + [span for start, text in pieces for span in seen.spans(start, text)]
        spans += seen.parts_of(pieces)
        self._last = lookup.last
        few = self._index is not None and self._index.length <= LARGEST_LOOKUP
        looked_up = map(lookup.span, seen.unexplained()[: MAX_LOOKUPS * few])
        return (*spans, *(span for span in looked_up if span is not None))


class _Lookup:
    """Finds text that guest code itself took from the context, until the deadline."""

    def __init__(self, index: ContextIndex | None, until: float | None, last: int) -> None:
        self._index, self.last = index, last
        self._until = min(time.thread_time() + LOOKUP_SECONDS, until or float("inf"))

    def passages(self, text: str) -> tuple[list[Span], str]:
        """Return the ranges of a text's long passages, and the text without the passages."""
        spans: list[Span] = []
        rest: list[str] = []
        # A prompt mostly begins with words of its own, and a text that the context does not have is
        # dear to look for. So the second line is first; what fits before it is taken with it.
        second, tries = _next_probe(text, 0), MAX_LOOKUPS
        at = second if len(text) - second >= PASSAGE else 0
        rest.append(text[:at])
        while self._index is not None and tries and len(text) - at >= PASSAGE:
            span = self.span(text[at : at + PROBE])
            size = 0 if span is None else self._common(text, at, span[0])
            if span is not None and size >= PASSAGE:
                begun = span[0] - self._common_before(text, at, span[0])
                self.last = span[0] + size
                spans.append((begun, self.last))
                rest.append("\n")
                at += size
                continue
            tries -= 1
            after = _next_probe(text, at)
            rest.append(text[at:after])
            at = after
        return spans, "".join((*rest, text[at:]))

    def _common(self, text: str, at: int, start: int) -> int:
        """Return how many characters of text[at:] and context[start:] are equal."""
        assert self._index is not None
        size = 0
        while here := text[at + size : at + size + BLOCK]:
            there = self._index.text(start + size, start + size + len(here))
            if here != there:
                return size + _same_from_start(here, there)
            size += len(here)
        return size

    def _common_before(self, text: str, at: int, start: int) -> int:
        """Return how many characters before are equal too: the line may begin with other words."""
        assert self._index is not None
        size = min(at, start, STRIDE)
        before = (text[at - size : at], self._index.text(start - size, start))
        return _same_from_start(*(text[::-1] for text in before))

    def span(self, text: str) -> Span | None:
        """Return where the context has this text: after the last passage, or else anywhere."""
        for begin in (self.last, 0) if self.last else (0,):
            left = self._until - time.thread_time()
            if self._index is None or not TELLING <= len(text) <= LONGEST_OBSERVATION or left <= 0:
                return None
            try:
                start = next(self._index.places(text, begin, seconds=PATIENCE * left), -1)
            except ExecutionTimeoutError:
                return None
            if start >= 0:
                return start, start + len(text)
        return None


def _same_from_start(here: str, there: str) -> int:
    """Return how many characters two texts have in common at their beginnings."""
    pairs = enumerate(zip(here, there, strict=False))
    same = (n for n, (character, other) in pairs if character != other)
    return next(same, min(len(here), len(there)))


def _next_probe(text: str, at: int) -> int:
    """Return the beginning of the next line, or a place further on in a long one."""
    line_end = text.find("\n", at, at + STRIDE)
    return min(at + STRIDE, len(text)) if line_end < 0 else line_end + 1


class _Observation:
    """The text that a model is shown, with the lines that were matched so far."""

    def __init__(self, text: str) -> None:
        self._text = text
        lines = text.splitlines()[:_MAX_LINES]
        self._lines = dict.fromkeys(line.strip() for line in lines)
        self._hits = {hit for line in lines if (hit := _hit(line))}
        self._explained: list[str] = []
        self._left = MAX_COMPARED

    def spans(self, start: int, text: str) -> Iterator[Span]:
        """Return the ranges of a piece's lines that occur in it; of the whole piece if it does."""
        if not text.strip():
            return
        if self._has(text):
            self._explained.append(text)
            yield start, start + len(text)
            return
        for line in text.splitlines(keepends=True):
            if self._has(line.rstrip("\r\n")):
                self._explained.append(line)
                yield start, start + len(line)
            start += len(line)

    def parts_of(self, pieces: Iterable[Piece]) -> Iterator[Span]:
        """Return the ranges of its lines that are parts of longer lines of a piece."""
        lines = self.unexplained()
        for start, text in pieces:
            for line in lines:
                if self._spend(len(text)) and (at := text.find(line)) >= 0:
                    self._explained.append(line)
                    yield start + at, start + at + len(line)

    def unexplained(self) -> list[str]:
        """Return lines that are long enough to identify and contain no matched text."""
        explained = dict.fromkeys(
            line.strip() for text in self._explained for line in text.splitlines()
        )
        telling = [line for line in explained if len(line) >= TELLING]
        lines = (line for line in self._lines if len(line) >= TELLING and line not in explained)
        unexplained = (line for line in lines if not self._has_any(line, telling))
        return list(islice(unexplained, 4 * MAX_LOOKUPS))

    def _has_any(self, line: str, texts: list[str]) -> bool:
        """Return whether a line contains one of the texts; True if the budget is used up."""
        return not self._spend(len(line) * len(texts)) or any(text in line for text in texts)

    def _has(self, text: str) -> bool:
        """Return whether a text occurs: a short one as a whole line or hit, a long one anywhere."""
        stripped = text.strip()
        if not stripped:
            return False
        if stripped in self._lines or stripped in self._hits:
            return True
        enough = len(stripped) >= TELLING and self._spend(len(self._text))
        return enough and stripped in self._text

    def _spend(self, characters: int) -> bool:
        self._left -= characters
        return self._left >= 0


def _hit(line: str) -> str:
    """Return the text of a printed hit; "" if the line is not a hit."""
    match = _PLACE.search(line)
    return line[match.end() :].strip() if match and " " not in line[: match.start()] else ""
