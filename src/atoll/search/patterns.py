"""Patterns, and the finders of their matches: in time linear in the bytes, whatever the pattern.

SECURITY: patterns are a guest's. Never `re`: a pattern could make it backtrack for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from atoll.errors import ConfigError
from atoll.guest.shared.search import check
from atoll.search.backtracking import ChildExpression
from atoll.search.expressions import compile_expression
from atoll.search.literals import Frequencies, Literal
from atoll.search.mapped_bytes import Memory
from atoll.search.required import required_runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.guest.shared.search import Find

    Span = tuple[int, int]

PIECE = 1 << 20
"""Bytes of a chunk: it fits into a core's cache, and is searched in about a millisecond."""
_FAST, _LEAST = 4 * PIECE, PIECE >> 4
_LIGHT = 64
"""Most RE2 instructions of an expression that is searched for in chunks of full size."""
_SPECIAL = frozenset("\\.^$*+?{}[]()|")
_LINE_END = 10
_MISSES = 32
"""Lines with the required text but no match, after which the search does without that text."""
_DEAREST = 0.6
"""Most seconds per gigabyte to find a required text; the expression itself takes two."""
_SAMPLE = 1 << 12
"""Bytes of the first buffer that show which texts are rare."""


def check_pattern(pattern: str, *, regex: bool) -> None:
    """Raise ConfigError if the pattern cannot be searched for line by line."""
    try:
        check(pattern, regex)
    except ValueError as exc:
        raise ConfigError(str(exc)) from None


def utf8_bytes(text: str) -> bytes:
    """Encode a pattern for a search of files, whose bytes may be anything."""
    return text.encode("utf-8", "surrogateescape")


class Pattern:
    """A checked and compiled pattern; ConfigError says what is wrong with it."""

    def __init__(
        self,
        pattern: str,
        *,
        regex: bool,
        ignore_case: bool,
        encode: Callable[[str], bytes | None] = utf8_bytes,
        latin1: bool = False,
    ) -> None:
        """`encode` returns None for a text that cannot be in the bytes."""
        check_pattern(pattern, regex=regex)
        plain = not regex or _SPECIAL.isdisjoint(pattern)
        self._finder: Finder | None = None
        self._expression: Any = None
        self._texts: list[bytes] | None = None
        if plain and not ignore_case:
            self._texts = [needle] if (needle := encode(pattern)) is not None else None
            return
        data = pattern.encode("latin-1" if latin1 else "utf-8", "surrogatepass")
        latin1 = latin1 or (plain and pattern.isascii())  # ignore the case of ASCII letters only
        self._expression = compile_expression(
            data, ignore_case=ignore_case, literal=plain, latin1=latin1
        )
        if not ignore_case:
            self._texts = [text for run in required_runs(pattern) if (text := encode(run))]

    @property
    def is_shareable(self) -> bool:
        """Whether two threads may search different buffers at once."""
        return not isinstance(self._expression, ChildExpression)

    def finder(self, frequencies: Frequencies) -> Finder:
        """Return the fastest finder for bytes with these frequencies."""
        literals = [Literal(text, frequencies) for text in self._texts or ()]
        if self._expression is None:
            return Plain(literals[0]) if literals else Nothing()
        expression = Expression(self._expression)
        return Guarded(literals, expression) if literals else expression

    def within(self, buffer: bytearray, used: int) -> Find:
        """Return what finds the next match in the first `used` bytes, which end with a line end.

        The first buffer decides which finder serves for all of them.
        """
        if isinstance(self._expression, ChildExpression):
            self._expression.forget()
        if self._finder is None:
            self._finder = self.finder(Frequencies(Memory(buffer, min(used, _SAMPLE))))
        first, memory = self._finder.first, Memory(buffer, used)

        def find(at: int) -> int:
            span = first(memory, at, used)
            return -1 if span is None else span[0]

        return find


class Finder(Protocol):
    """Finds one pattern; several threads use it at once."""

    required: tuple[bytes, ...]
    """Texts that the line of every match contains."""
    piece: int
    """Bytes of a chunk, which a thread should search in about a millisecond."""

    def first(self, memory: Memory, at: int, end: int) -> Span | None:
        """Return the first match that begins at `at` or later and ends before `end`."""


class Nothing:
    """Finds nothing: for a pattern that the text's encoding cannot contain."""

    required: tuple[bytes, ...] = ()
    piece = _FAST

    def first(self, memory: Memory, at: int, end: int) -> Span | None:  # noqa: ARG002 - as the others
        """Return None."""
        return None


class Plain:
    """Finds a text."""

    piece = _FAST

    def __init__(self, literal: Literal) -> None:
        self._literal = literal
        self.required: tuple[bytes, ...] = (literal.needle,)

    def first(self, memory: Memory, at: int, end: int) -> Span | None:
        """Return the first occurrence."""
        place = self._literal.find(memory, at, end)
        return None if place < 0 else (place, place + len(self._literal.needle))


class Expression:
    """Finds a regular expression."""

    required: tuple[bytes, ...] = ()

    def __init__(self, expression: Any) -> None:
        self._expression = expression
        # One byte may cost as many steps as there are instructions: smaller chunks let the search
        # check its deadline in between.
        self.piece = max(min(PIECE, PIECE * _LIGHT // expression.programsize), _LEAST)

    def first(self, memory: Memory, at: int, end: int) -> Span | None:
        """Return the first match; an empty match at the very end only if a line begins there."""
        match = self._expression.search(memory.buffer, at, end)
        if match is None:
            return None
        start, stop = match.span()
        if start >= end and (not end or memory.buffer[end - 1] == _LINE_END):
            return None
        return start, stop


class Guarded:
    """Finds a text that every match contains, then matches its line; all lines if that is slow."""

    def __init__(self, literals: list[Literal], expression: Expression) -> None:
        self._expression = expression
        self.required = tuple(literal.needle for literal in literals)
        self._literal = min(literals, key=lambda literal: literal.cost)
        cheap = self._literal.cost < _DEAREST
        self._misses = _MISSES if cheap else 0
        self.piece = _FAST if cheap and expression.piece == PIECE else expression.piece

    def first(self, memory: Memory, at: int, end: int) -> Span | None:
        """Return the first match."""
        for _ in range(self._misses):
            place = self._literal.find(memory, at, end)
            if place < 0:
                return None
            begin = memory.find_last_byte(_LINE_END, at, place) + 1 or at
            stop = memory.find_byte(_LINE_END, place, end)
            stop = end if stop < 0 else stop
            if (match := self._expression.first(memory, begin, stop)) is not None:
                return match
            at = stop + 1
            if at >= end:
                return None
        return self._expression.first(memory, at, end)
