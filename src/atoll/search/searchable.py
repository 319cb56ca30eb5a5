"""One encoding of a context's text, with its line numbers and trigrams: what an index searches."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING

from atoll.errors import ExecutionTimeoutError
from atoll.search.chunks import whole_lines
from atoll.search.grep import Grep, Hit, Scan, line_around
from atoll.search.lines import Lines
from atoll.search.literals import Frequencies, Literal
from atoll.search.patterns import Pattern
from atoll.search.sections import find_sections
from atoll.search.trigrams import Trigrams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.search.encoded import Characters, Encoded
    from atoll.search.patterns import Finder
    from atoll.search.sections import Section

    Span = tuple[int, int]

COUNT_SECONDS = 2.0
"""Seconds to count the hits of a search that found more than were asked for."""
_STRETCH = 1 << 24
"""Bytes searched for a text between two checks of the deadline."""


class Searchable:
    """The searches of one encoding; arguments and results are offsets in characters."""

    def __init__(self, characters: Characters, encoded: Encoded) -> None:
        self._characters, self.encoded = characters, encoded
        self._memory = encoded.memory
        self.lines, self.trigrams = Lines(self._memory), Trigrams(self._memory)

    @cached_property
    def _frequencies(self) -> Frequencies:
        return Frequencies(self._memory)

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Return headers and chapters."""
        return find_sections(self.encoded, self.lines, self._characters.length)

    def grep(
        self,
        pattern: str,
        within: Span,
        *,
        most: int,
        ignore_case: bool,
        literal: bool,
        seconds: float,
    ) -> Grep:
        """Return the lines that match the pattern within a range of characters."""
        finder = Pattern(
            pattern,
            regex=not literal,
            ignore_case=ignore_case,
            encode=self.encoded.encode,
            latin1=not self.encoded.utf8,
        ).finder(self._frequencies)
        scan = Scan(finder, self.encoded, most=most, seconds=seconds)
        start, end = map(self.encoded.to_byte, within)
        spans, ended = scan.run(self._parts(finder, (start, end)))
        hits = self._hits(spans[:most])
        self.trigrams.start()
        if len(spans) > most:
            counter = Scan(finder, self.encoded, most=most, seconds=min(seconds, COUNT_SECONDS))
            total, counted = counter.count(self._parts(finder, (start, end)))
            return Grep(
                hits=hits,
                more=True,
                scanned=(within[0], hits[-1].end),
                total=max(total, len(spans)),
                counted=counted,
            )
        stop = within[1] if ended is None else self.encoded.to_character(ended)
        return Grep(
            hits=hits,
            more=ended is not None,
            scanned=(within[0], stop),
            total=len(hits),
            counted=ended is None,
        )

    def places(self, text: str, start: int, seconds: float) -> Iterator[int]:
        """Yield the offsets of a text, line ends included; ExecutionTimeoutError if it is late."""
        needle, until = self.encoded.encode(text), time.monotonic() + seconds
        if needle is None:
            return
        literal, after = Literal(needle, self._frequencies), 0
        for at, end in self._stretches(needle, self.encoded.to_byte(start)):
            while (place := literal.find(self._memory, max(at, after), end)) >= 0:
                _check_time(until)
                yield self.encoded.to_character(place)
                after = place + 1
            _check_time(until)

    def _parts(self, finder: Finder, within: Span) -> list[Span]:
        spans = self.trigrams.spans(finder.required)
        return [within] if spans is None else whole_lines(self._memory, spans, within)

    def _stretches(self, needle: bytes, start: int) -> list[Span]:
        """Yield spans that overlap by the length of the needle."""
        spans, size = self.trigrams.spans([needle]), self._memory.size
        if spans is None:
            spans = [(at, at + _STRETCH) for at in range(start, size, _STRETCH)]
        longer = len(needle) - 1
        return [(max(at, start), min(end + longer, size)) for at, end in spans if end > start]

    def _hits(self, spans: list[Span]) -> tuple[Hit, ...]:
        if spans:
            self.lines.count_until(spans[-1][0])
        numbers = self.lines.of_all([start for start, _ in spans])
        return tuple(map(self._hit, spans, numbers))

    def _hit(self, span: Span, line: int) -> Hit:
        start, end = map(self.encoded.to_character, span)
        shown, at = line_around(self._characters, start)
        return Hit(line=line, start=start, end=end, text=shown, at=at)


def _check_time(until: float) -> None:
    if time.monotonic() > until:
        raise ExecutionTimeoutError("looking for the text took too long: look for less")
