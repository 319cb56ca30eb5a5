"""Which characters of a context a text shows: what tools returned is not what a model has read.

Tools hand pieces of the context to guest code, which may print them, cut them or drop them. Only
what stands in the observation, word for word, counts. Long passages, such as context[a:b] in a
prompt, are found first and taken as a whole: a few characters of one say where it is from, and it
is compared from there on. What remains is matched line by line.

SECURITY: context and observation may both be made to be slow to compare. Each comparison is paid
for with the characters it looks at; when all are spent, too little counts as shown, never too much.
"""

from __future__ import annotations

import re
import time
from collections import deque
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING

from atoll.errors import ExecutionTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from atoll.explore.index import ContextIndex

    Piece = tuple[int, str]
    """Where in the context it begins, and its text."""
    Span = tuple[int, int]

MOST_PIECES, MOST_CHARACTERS = 2_000, 4 << 20
"""What is remembered: the latest."""
LONGEST_OBSERVATION = 1 << 20
TELLING = 24
"""Characters from which on a line that is part of another says where it is from."""
MOST_LOOKUPS = 50
LARGEST_LOOKUP = 64 << 20
"""Characters of a context in which lines are looked for that no tool returned."""
MOST_COMPARED = 48 << 20
"""Characters that one observation is compared with, all together."""
LOOKUP_SECONDS = 2.0
PROBE, PASSAGE = 64, 200
"""Characters that say where a passage is from, and those that it must have to be one."""
STRIDE, BLOCK = 1_000, 1 << 16
_MOST_LINES = 20_000
_PLACE = re.compile(r"(?<=\d) \[\d{1,20}:\d{1,20}\] ")
"""What stands between line number and text of a hit, as guest/looking prints one."""


class Shown:
    """Remembers pieces, and says which of them a text shows; for several threads at once."""

    def __init__(self, index: ContextIndex | None) -> None:
        self._index, self._lock = index, Lock()
        self._pieces: deque[Piece] = deque()
        self._characters = 0

    def note(self, pieces: Iterable[Piece]) -> None:
        """A tool has returned these; the oldest are forgotten where there are too many."""
        with self._lock:
            for start, text in pieces:
                self._pieces.append((start, text[:MOST_CHARACTERS]))
                self._characters += len(self._pieces[-1][1])
                while len(self._pieces) > MOST_PIECES or self._characters > MOST_CHARACTERS:
                    self._characters -= len(self._pieces.popleft()[1])

    def match(self, observation: str, *, until: float | None = None) -> tuple[Span, ...]:
        """Return the ranges of the context that stand in what the model is shown.

        At `until`, by the monotonic clock, the search ends with what was found.
        """
        with self._lock:
            pieces = list(self._pieces)
        pieces.reverse()  # what was asked for last is what is shown most likely
        lookup = _Lookup(self._index, until)
        passages, rest = lookup.passages(observation[:LONGEST_OBSERVATION])
        seen = _Observation(rest)
        spans = passages + [span for start, text in pieces for span in seen.spans(start, text)]
        spans += seen.parts_of(pieces)
        looked_up = map(lookup.span, seen.unexplained()[:MOST_LOOKUPS])
        return (*spans, *(span for span in looked_up if span is not None))


class _Lookup:
    """Finds what code has cut out of the context by itself, for as long as there is time."""

    def __init__(self, index: ContextIndex | None, until: float | None) -> None:
        self._index = index if index is not None and index.length <= LARGEST_LOOKUP else None
        self._until = min(time.monotonic() + LOOKUP_SECONDS, until or float("inf"))

    def passages(self, text: str) -> tuple[list[Span], str]:
        """Return where the long passages of a text are from, and the text without them."""
        spans: list[Span] = []
        rest: list[str] = []
        at, tries = 0, MOST_LOOKUPS
        while self._index is not None and tries and len(text) - at >= PASSAGE:
            found = self.span(text[at : at + PROBE])
            size = 0 if found is None else self._common(text, at, found[0])
            if found is not None and size >= PASSAGE:
                begun = found[0] - self._common_before(text, at, found[0])
                spans.append((begun, found[0] + size))
                rest.append("\n")
                at += size
                continue
            tries -= 1
            after = _next_probe(text, at)
            rest.append(text[at:after])
            at = after
        return spans, "".join((*rest, text[at:]))

    def _common(self, text: str, at: int, start: int) -> int:
        """Return how many characters are the same from `at` on, and from `start` of the context."""
        assert self._index is not None
        size = 0
        while here := text[at + size : at + size + BLOCK]:
            there = self._index.text(start + size, start + size + len(here))
            if here != there:
                return size + _same_from_start(here, there)
            size += len(here)
        return size

    def _common_before(self, text: str, at: int, start: int) -> int:
        """Return how many characters before are the same too: a line may begin with other words."""
        assert self._index is not None
        size = min(at, start, STRIDE)
        before = (text[at - size : at], self._index.text(start - size, start))
        return _same_from_start(*(one[::-1] for one in before))

    def span(self, text: str) -> Span | None:
        """Where the context has this text."""
        left = self._until - time.monotonic()
        if self._index is None or not TELLING <= len(text) <= LONGEST_OBSERVATION or left <= 0:
            return None
        try:
            start = next(self._index.places(text, seconds=left), -1)
        except ExecutionTimeoutError:
            return None
        return None if start < 0 else (start, start + len(text))


def _same_from_start(here: str, there: str) -> int:
    """Return how many characters two texts have in common at their beginnings."""
    pairs = enumerate(zip(here, there, strict=False))
    same = (n for n, (one, other) in pairs if one != other)
    return next(same, min(len(here), len(there)))


def _next_probe(text: str, at: int) -> int:
    """Return the beginning of the next line, or a place further on in a long one."""
    line_end = text.find("\n", at, at + STRIDE)
    return min(at + STRIDE, len(text)) if line_end < 0 else line_end + 1


class _Observation:
    """What a model is shown, with the lines of it that are accounted for."""

    def __init__(self, text: str) -> None:
        self._text = text
        lines = text.splitlines()[:_MOST_LINES]
        self._lines = dict.fromkeys(line.strip() for line in lines)
        self._hits = {hit for line in lines if (hit := _hit(line))}
        self._explained: list[str] = []
        self._left = MOST_COMPARED

    def spans(self, start: int, text: str) -> Iterator[Span]:
        """The lines of a piece that stand in it; the whole piece if it does."""
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
        """Lines of it that are parts of a piece's longer ones."""
        lines = self.unexplained()
        for start, text in pieces:
            for line in lines:
                if self._spend(len(text)) and (at := text.find(line)) >= 0:
                    self._explained.append(line)
                    yield start + at, start + at + len(line)

    def unexplained(self) -> list[str]:
        """Lines long enough to tell, which have nothing in them that is accounted for."""
        told = dict.fromkeys(line.strip() for text in self._explained for line in text.splitlines())
        telling = [one for one in told if len(one) >= TELLING]
        lines = (line for line in self._lines if len(line) >= TELLING and line not in told)
        unexplained = (line for line in lines if not self._has_any(line, telling))
        return list(islice(unexplained, 4 * MOST_LOOKUPS))

    def _has_any(self, line: str, texts: list[str]) -> bool:
        """Whether one of them is in a line; so it is said when that is too much to find out."""
        return not self._spend(len(line) * len(texts)) or any(one in line for one in texts)

    def _has(self, text: str) -> bool:
        """A short line must be a line of it, or that of a hit; a long one may be part of one."""
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
    """The text of a hit; nothing if the line is none."""
    found = _PLACE.search(line)
    return line[found.end() :].strip() if found and " " not in line[: found.start()] else ""
