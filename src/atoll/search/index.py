"""The index of a context: built once, when first needed, and shared by all its users."""

from __future__ import annotations

import time
import weakref
from bisect import bisect_right
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING

from atoll.concurrency import forks
from atoll.errors import ConfigError, ExecutionTimeoutError, SandboxClosedError
from atoll.search.blocks import SECONDS
from atoll.search.encoded import Characters, Narrow, Wide
from atoll.search.grep import Grep, Hit, Lines, Scan, check_most, line_around, whole_lines
from atoll.search.patterns import Frequencies, Literal, Pattern
from atoll.search.sections import find_sections
from atoll.search.trigrams import Trigrams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.sandbox.context import Context
    from atoll.search.encoded import Encoded
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
            while True:
                place = literal.find(self._memory, max(at, after), end)
                if time.monotonic() > until:
                    raise ExecutionTimeoutError("looking for the text took too long: look for less")
                if place < 0:
                    break
                yield self.encoded.to_character(place)
                after = place + 1

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
        hits = []
        numbers = self.lines.of_all([start for start, _ in spans])
        for (first, last), line in zip(spans, numbers, strict=True):
            start, end = self.encoded.to_character(first), self.encoded.to_character(last)
            shown, at = line_around(self._characters, start)
            hits.append(Hit(line=line, start=start, end=end, text=shown, at=at))
        return tuple(hits)


_LAST_OF_LATIN1 = "\xff"
LONGEST_PATTERN = 10_000
_indexes: weakref.WeakKeyDictionary[Context, ContextIndex] = weakref.WeakKeyDictionary()
_making = forks.new_rlock()


class ContextIndex:
    """Lines, sections and searches of one context, for several threads at once."""

    def __init__(self, context: Context) -> None:
        """Call `of` instead, which makes one index for each context."""
        self.length, self._files = context.length, context.files
        self._lock = forks.new_rlock()
        self._characters: Characters | None = Characters(context)
        self._forms: dict[bool, Searchable] = {}
        self._finalizer = weakref.finalize(self, _let_go, self._forms)

    @classmethod
    def of(cls, context: Context) -> ContextIndex:
        """Return the index of this context; it lives as long as the context."""
        with _making:
            index = _indexes.get(context)
            if index is None or index.closed:
                index = _indexes[context] = cls(context)
            return index

    @property
    def closed(self) -> bool:
        """Whether its memory was released."""
        return self._characters is None

    def text(self, start: int, end: int) -> str:
        """Return the characters from `start` up to `end`, or to the end of the context."""
        return self._open.text(*self._range(start, end))

    def line_of(self, offset: int) -> int:
        """Return the number of the line that contains a character; the first is 1."""
        form, (start, _) = self._form(), self._range(offset, None)
        return form.lines.of(form.encoded.to_byte(start))

    def line_start(self, number: int) -> int:
        """Return the offset at which a line begins; the length if there are fewer lines."""
        _check_whole("a line", number, least=1)
        form = self._form()
        return form.encoded.to_character(form.lines.start(number))

    def file_at(self, offset: int) -> tuple[str, int] | None:
        """Return the path of the file that a character is from, and the file's first line.

        Return None if the context was not built from files.
        """
        at = bisect_right(self._files, offset, key=itemgetter(0)) - 1
        if at < 0:
            return None
        start, path = self._files[at]
        return path, self.line_of(start)

    def sections(self) -> tuple[Section, ...]:
        """Return headers, titles and chapters in order, at most 5,000."""
        return self._form().sections

    def find(self, literal: str, start: int = 0) -> int:
        """Return the offset of a text from `start` on, or -1. It may contain line ends."""
        return next(self.places(literal, start), -1)

    def places(self, literal: str, start: int = 0, seconds: float = SECONDS) -> Iterator[int]:
        """Yield the offsets of a text, in order, from `start` on."""
        if not isinstance(literal, str) or not literal:
            raise ConfigError(f"what to find must be a text that is not empty, not {literal!r:.50}")
        return self._form().places(literal, self._range(start, None)[0], seconds)

    def grep(
        self,
        pattern: str,
        *,
        most: int = 100,
        ignore_case: bool = False,
        literal: bool = False,
        start: int = 0,
        end: int | None = None,
        seconds: float = SECONDS,
    ) -> Grep:
        """Return the lines that match an RE2 expression; ConfigError if it is not a valid one."""
        check_most(most)
        _check_pattern(pattern)
        within = self._range(start, end)
        beyond = not (literal and not ignore_case) and _beyond_latin1(pattern, ignore_case)
        return self._form(beyond_latin1=beyond).grep(
            pattern, within, most=most, ignore_case=ignore_case, literal=literal, seconds=seconds
        )

    def build(self) -> None:
        """Build what makes searches fast now; otherwise the first search starts building it."""
        form = self._form()
        form.lines.count_until(form.encoded.memory.size)
        form.trigrams.build()

    def close(self) -> None:
        """Release the context's memory; running searches keep it until they end."""
        with self._lock:
            self._finalizer()
            self._characters = None

    @property
    def _open(self) -> Characters:
        characters = self._characters
        if characters is None:
            raise SandboxClosedError("the index of the context has been closed")
        return characters

    def _form(self, *, beyond_latin1: bool = False) -> Searchable:
        """Return the text as bytes: latin-1 becomes UTF-8 for an expression that needs it."""
        with self._lock:
            characters = self._open
            wide = characters.width > 1 or (beyond_latin1 and not characters.ascii)
            if wide not in self._forms:
                encoded = Wide(characters) if wide else Narrow(characters)
                self._forms[wide] = Searchable(characters, encoded)
            return self._forms[wide]

    def _range(self, start: int, end: int | None) -> Span:
        end = self.length if end is None else end
        for number in (start, end):
            _check_whole("an offset", number, least=0)
        end = min(end, self.length)
        return min(start, end), end


def _check_pattern(pattern: str) -> None:
    if not isinstance(pattern, str):
        raise ConfigError(f"a pattern must be text, not {type(pattern).__name__}")
    if len(pattern) > LONGEST_PATTERN:
        most = f"at most {LONGEST_PATTERN:,} characters"
        raise ConfigError(f"the pattern has {len(pattern):,} characters, {most}: search for less")


def _beyond_latin1(pattern: str, ignore_case: bool) -> bool:  # noqa: FBT001
    """Return whether a pattern needs UTF-8: in latin-1, RE2 ignores the case of ASCII only."""
    folds = ignore_case or "(?" in pattern
    return (
        "\\x{" in pattern
        or max(pattern, default="") > _LAST_OF_LATIN1
        or (folds and not pattern.isascii())
    )


def _let_go(forms: dict[bool, Searchable]) -> None:
    for form in forms.values():
        form.trigrams.stop()
    forms.clear()


def _check_whole(what: str, number: int, *, least: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise ConfigError(f"{what} is {number!r:.50}: it must be a whole number from {least} on")
