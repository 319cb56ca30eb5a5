"""Finders of a pattern's next match, in time linear in the bytes for every pattern and text.

SECURITY: patterns are a guest's. Never `re`: a pattern could make it backtrack for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from atoll.errors import ConfigError
from atoll.explore.chunks import PIECE
from atoll.explore.literals import Literal
from atoll.files.matchers import check_pattern, compile_expression
from atoll.files.required import required_runs

if TYPE_CHECKING:
    from atoll.explore.encoded import Encoded
    from atoll.explore.literals import Frequencies
    from atoll.explore.memory import Memory

    Span = tuple[int, int]

LONGEST_PATTERN = 10_000
_FAST, _LEAST = 4 * PIECE, PIECE >> 4
_LIGHT = 64
"""Most RE2 instructions of an expression that is searched for in chunks of full size."""
_SPECIAL = frozenset("\\.^$*+?{}[]()|")
_LINE_END = 10
_MISSES = 32
"""Lines with the required text but no match, after which the search does without that text."""
_DEAREST = 0.6
"""Most seconds per gigabyte to find a required text; the expression itself takes two."""


class Finder(Protocol):
    """Finds one pattern in one memory; several threads use it at once."""

    required: tuple[bytes, ...]
    """Texts that the line of every match contains."""
    piece: int
    """Bytes of a chunk, which a thread should search in about a millisecond."""

    def first(self, at: int, end: int) -> Span | None:
        """Return the first match that begins at `at` or later and ends before `end`."""


def make_finder(
    pattern: str, text: Encoded, rates: Frequencies, *, ignore_case: bool, literal: bool
) -> Finder:
    """Return the fastest finder for a pattern; ConfigError says what is wrong with the pattern."""
    check(pattern, literal=literal)
    plain = literal or _SPECIAL.isdisjoint(pattern)
    if not ignore_case and plain:
        needle = text.encode(pattern)
        return Nothing() if needle is None else Plain(Literal(text.memory, needle, rates))
    expression = Expression(text.memory, _compile(pattern, text, ignore_case, plain))
    if ignore_case:
        return expression
    runs = [text.encode(run) for run in required_runs(pattern)]
    literals = [Literal(text.memory, run, rates) for run in runs if run]
    return Guarded(literals, expression) if literals else expression


def check(pattern: str, *, literal: bool) -> None:
    """Raise ConfigError if the pattern cannot be searched for."""
    if not isinstance(pattern, str):
        raise ConfigError(f"a pattern must be text, not {type(pattern).__name__}")
    if len(pattern) > LONGEST_PATTERN:
        most = f"at most {LONGEST_PATTERN:,} characters"
        raise ConfigError(f"the pattern has {len(pattern):,} characters, {most}: search for less")
    check_pattern(pattern, regex=not literal)


def _compile(pattern: str, text: Encoded, ignore_case: bool, literal: bool) -> Any:  # noqa: FBT001
    latin1 = not text.utf8
    data = pattern.encode("latin-1") if latin1 else pattern.encode("utf-8", "surrogatepass")
    return compile_expression(data, ignore_case=ignore_case, literal=literal, latin1=latin1)


class Nothing:
    """Finds nothing: for a pattern that the text's encoding cannot contain."""

    required: tuple[bytes, ...] = ()
    piece = _FAST

    def first(self, at: int, end: int) -> Span | None:  # noqa: ARG002 - as the others
        """Return None."""
        return None


class Plain:
    """Finds a text."""

    piece = _FAST

    def __init__(self, literal: Literal) -> None:
        self._literal = literal
        self.required: tuple[bytes, ...] = (literal.needle,)

    def first(self, at: int, end: int) -> Span | None:
        """Return the first occurrence."""
        place = self._literal.find(at, end)
        return None if place < 0 else (place, place + len(self._literal.needle))


class Expression:
    """Finds a regular expression."""

    required: tuple[bytes, ...] = ()

    def __init__(self, memory: Memory, expression: Any) -> None:
        self.memory, self._expression = memory, expression
        # One byte may cost as many steps as there are instructions: smaller chunks let the search
        # check its deadline in between.
        self.piece = max(min(PIECE, PIECE * _LIGHT // expression.programsize), _LEAST)

    def first(self, at: int, end: int) -> Span | None:
        """Return the first match; an empty match at the very end only if a line begins there."""
        match = self._expression.search(self.memory.buffer, at, end)
        if match is None:
            return None
        start, stop = match.span()
        if start >= end and (not end or self.memory.buffer[end - 1] == _LINE_END):
            return None
        return start, stop


class Guarded:
    """Finds a text that every match contains, then matches its line; all lines if that is slow."""

    def __init__(self, literals: list[Literal], expression: Expression) -> None:
        self._expression, self._memory = expression, expression.memory
        self.required = tuple(literal.needle for literal in literals)
        self._literal = min(literals, key=lambda literal: literal.cost)
        cheap = self._literal.cost < _DEAREST
        self._misses = _MISSES if cheap else 0
        self.piece = _FAST if cheap and expression.piece == PIECE else expression.piece

    def first(self, at: int, end: int) -> Span | None:
        """Return the first match."""
        for _ in range(self._misses):
            place = self._literal.find(at, end)
            if place < 0:
                return None
            begin = self._memory.find_last_byte(_LINE_END, at, place) + 1 or at
            stop = self._memory.find_byte(_LINE_END, place, end)
            stop = end if stop < 0 else stop
            if (match := self._expression.first(begin, stop)) is not None:
                return match
            at = stop + 1
            if at >= end:
                return None
        return self._expression.first(at, end)
