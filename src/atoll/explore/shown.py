"""Which characters of a context a text shows: what tools returned is not what a model has read.

Tools hand pieces of the context to guest code, which may print them, cut them or drop them. Only
what stands in the observation, word for word, counts.
"""

from __future__ import annotations

import re
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING

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
_MOST_LINES = 20_000
HIT = re.compile(r"\S*?\d+ \[\d+:\d+\] (.*)")
"""A hit as guest/looking prints one."""


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

    def match(self, observation: str) -> tuple[Span, ...]:
        """The ranges of the context that stand in what the model is shown."""
        with self._lock:
            pieces = list(self._pieces)
        if whole := self._whole(observation.strip()):
            return (whole,)
        seen = _Observation(observation[:LONGEST_OBSERVATION])
        spans = [span for start, text in pieces for span in seen.spans(start, text)]
        spans += seen.parts_of(pieces)
        if self._index is not None and self._index.length <= LARGEST_LOOKUP:
            spans += self._looked_up(self._index, seen)
        return tuple(spans)

    def _whole(self, text: str) -> Span | None:
        """A text that is one passage of the context, as a print of a slice is."""
        if self._index is None or self._index.length > LARGEST_LOOKUP or len(text) < TELLING:
            return None
        start = self._index.find(text) if len(text) <= LONGEST_OBSERVATION else -1
        return None if start < 0 else (start, start + len(text))

    @staticmethod
    def _looked_up(index: ContextIndex, seen: _Observation) -> Iterator[Span]:
        """Lines that code cut out of the context by itself."""
        for line in seen.unexplained()[:MOST_LOOKUPS]:
            start = index.find(line)
            if start >= 0:
                yield start, start + len(line)


class _Observation:
    """What a model is shown, with the lines of it that are accounted for."""

    def __init__(self, text: str) -> None:
        self._text = text
        lines = text.splitlines()[:_MOST_LINES]
        self._lines = dict.fromkeys(line.strip() for line in lines)
        self._hits = {found.group(1).strip() for line in lines if (found := HIT.match(line))}
        self._explained: list[str] = []
        self._budget = _MOST_LINES

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
        lines = self.unexplained()[: 4 * MOST_LOOKUPS]
        for start, text in pieces:
            for line in lines:
                if (at := text.find(line)) >= 0:
                    self._explained.append(line)
                    yield start + at, start + at + len(line)

    def unexplained(self) -> list[str]:
        """Lines long enough to tell, which have nothing in them that is accounted for."""
        told = dict.fromkeys(line.strip() for text in self._explained for line in text.splitlines())
        return [
            line
            for line in self._lines
            if len(line) >= TELLING
            and line not in told
            and not any(len(one) >= TELLING and one in line for one in told)
        ]

    def _has(self, text: str) -> bool:
        """A short line must be a line of it, or that of a hit; a long one may be part of one."""
        stripped = text.strip()
        if not stripped or self._budget <= 0:
            return False
        if stripped in self._lines or stripped in self._hits:
            return True
        self._budget -= 1
        return len(stripped) >= TELLING and stripped in self._text
