"""Patterns, and the finders of their matches: in time linear in the bytes, whatever the pattern.

SECURITY: patterns are a guest's. Never `re`: a pattern could make it backtrack for ever.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from atoll.errors import ConfigError
from atoll.guest.shared.search import check
from atoll.search.backtracking import ChildExpression, Match
from atoll.search.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.guest.shared.search import Find

    Span = tuple[int, int]


_STANDS_FOR_MANY = "dDwWsSbB"
_REPEATED_MAYBE_NEVER = ("?", "*", "{")


def required_runs(pattern: str) -> list[str]:
    """Return all required texts; none if the pattern is not simple.

    In doubt it returns less: a shorter text makes the search slower, a wrong one would hide lines.
    """
    try:
        return [run for run in _Scan(pattern).runs() if run]
    except (_NotSimpleError, IndexError, RecursionError):
        return []


class _NotSimpleError(Exception):
    """The pattern has syntax that this scan does not know."""


class _Scan:
    """Reads a pattern once, from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0

    def runs(self) -> list[str]:
        """Return runs of literal characters that every match has, outside groups and classes."""
        runs = [""]
        while self._at < len(self._pattern):
            char = self._next_literal()
            if self._pattern.startswith(_REPEATED_MAYBE_NEVER, self._at):
                self._skip_repetition()
                char = ""
            if char:
                runs[-1] += char
            if not char or self._pattern.startswith("+", self._at):
                runs.append("")
        return runs

    def _next_literal(self) -> str:
        """Return the next literal character; skip anything else and return ""."""
        char = self._take()
        if char == "\\":
            return self._escaped()
        if char == "|" or char in ")]}":
            raise _NotSimpleError
        if char == "(":
            self._skip_group()
        elif char == "[":
            self._skip_class()
        elif char not in ".^$+?*{":
            return char
        return ""

    def _escaped(self) -> str:
        char = self._take()
        if char in _STANDS_FOR_MANY:
            return ""
        if char.isalnum() or not char.isascii():
            raise _NotSimpleError
        return char

    def _skip_repetition(self) -> None:
        if self._take() == "{":
            while self._take() != "}":
                pass

    def _skip_group(self) -> None:
        """Skip a group; one with options is not simple: they may affect the rest of the pattern."""
        if self._pattern.startswith("?", self._at) and self._pattern[self._at + 1] != ":":
            raise _NotSimpleError
        while (char := self._take()) != ")":
            if char == "\\":
                self._escaped()
            elif char == "(":
                self._skip_group()
            elif char == "[":
                self._skip_class()

    def _skip_class(self) -> None:
        if self._pattern.startswith("^", self._at):
            self._at += 1
        self._take()  # "]" as the first character is a member of the class
        while (char := self._take()) != "]":
            if char in "[\\":
                raise _NotSimpleError

    def _take(self) -> str:
        self._at += 1
        return self._pattern[self._at - 1]


_NOT_IN_RE2 = ("(?=", "(?!", "(?<=", "(?<!")
_FLAGS = b"(?m)"
MAX_INSTRUCTIONS = 2_000
"""Instructions of a compiled expression: one byte of text may cost as many steps."""
_WINDOW = 1 << 16
"""Bytes that are lower-cased at once."""


class FoldedText:
    """Finds an ASCII text in any case where RE2 is missing; with the interface of RE2's objects."""

    programsize = 1

    def __init__(self, text: bytes) -> None:
        self._text = text.lower()

    def search(self, buffer: Any, at: int, end: int) -> Match | None:
        """Return the first occurrence that begins at `at` or later and ends before `end`."""
        size = len(self._text)
        for start in range(at, end, _WINDOW):
            stop = min(start + _WINDOW + size - 1, end)
            place = bytes(buffer[start:stop]).lower().find(self._text)
            if place >= 0:
                return Match((start + place, start + place + size))
        return None


def compile_expression(
    pattern: bytes, *, ignore_case: bool, literal: bool = False, latin1: bool = False
) -> Any:
    """Compile a pattern with RE2, or with `re` in a child process where RE2 is missing.

    ConfigError says why the pattern is refused.
    """
    try:
        import re2  # noqa: PLC0415 - an extra
    except ImportError:
        if literal and not ignore_case:
            raise ConfigError("a text is found without an expression") from None
        if literal and pattern.isascii():
            return FoldedText(pattern)
        text = pattern.decode("latin-1" if latin1 else "utf-8", "surrogatepass")
        return ChildExpression(
            re.escape(text) if literal else text, ignore_case=ignore_case, latin1=latin1
        )
    options = re2.Options()
    options.never_nl, options.never_capture = True, True
    options.log_errors, options.case_sensitive = False, not ignore_case
    if latin1:
        options.encoding = re2.Options.Encoding.LATIN1
    escaped = re2.escape(pattern) if literal else pattern
    try:
        expression = re2.compile(_FLAGS + escaped, options)
    except re2.error as exc:
        raise ConfigError(_complaint(pattern.decode("utf-8", "replace"), exc)) from None
    re2.purge()  # it would keep 128 of them, each with the megabytes that searching has filled
    if expression.programsize > MAX_INSTRUCTIONS:
        raise ConfigError("the regular expression is too large: repeat less in it, as with {1,100}")
    return expression


def _complaint(pattern: str, exc: Exception) -> str:
    """Return RE2's complaint with advice for the author of the pattern."""
    said = exc.args[0] if exc.args else b""
    reason = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    reason = reason.replace(_FLAGS.decode(), "", 1)
    if any(sign in pattern for sign in _NOT_IN_RE2):
        advice = "look-around is not supported: search for what is to be there, without (?=...)"
    elif reason.startswith("invalid escape sequence") and reason[-1:].isdigit():
        advice = "backreferences are not supported: write the text out"
    else:
        return f"not a regular expression: {reason}"
    return f"not a regular expression that can be searched for: {reason}; {advice}"


_SAMPLES, _SAMPLE = 64, 1 << 10
_LEAST_BYTES = 1 << 16
"""Bytes below which memmem is fast enough for every text."""
_TAIL_MISSES = 64
# Seconds per gigabyte, measured; only the ratios between them matter.
_MEMMEM = (0, 0.05, 0.83, 0.65, 0.42, 0.33, 0.28, 0.23, 0.18, 0.14)
_MEMMEM_LONG, _READING, _STOP, _MISS, _HIT = 0.1, 0.05, 15.0, 1000.0, 5000.0


class Frequencies:
    """Estimates how often a text occurs, by samples spread over the bytes."""

    def __init__(self, memory: Memory) -> None:
        step = max(memory.size // _SAMPLES, _SAMPLE)
        places = range(0, memory.size, step)
        self._sample = b"".join(memory.part(at, at + _SAMPLE) for at in places)

    def of(self, text: bytes) -> float:
        """Return the estimated share of offsets at which the text occurs; never 0."""
        return (self._sample.count(text) + 0.2) / (len(self._sample) + 1)


class Literal:
    """Finds one text; several threads use it at once."""

    def __init__(self, needle: bytes, frequencies: Frequencies) -> None:
        self.needle = needle
        least = _MEMMEM[len(needle)] if len(needle) < len(_MEMMEM) else _MEMMEM_LONG
        self._from: int | None = None
        """The index of the byte to search from; None for memmem."""
        for at in range(min(len(needle), 32)):
            tail = needle[at:]
            cost = _READING + _STOP * frequencies.of(tail[:1])
            cost += _MISS * frequencies.of(tail) if at else 0.0
            if cost < least:
                least, self._from = cost, at
        self.cost = least + _HIT * frequencies.of(needle)
        """Estimated seconds per gigabyte to find the text and match its lines."""

    def find(self, memory: Memory, at: int, end: int) -> int:
        """Return the offset of the first whole occurrence between `at` and `end`, or -1."""
        if self._from is None or end - at < _LEAST_BYTES or self._tail is None:
            return memory.find(self.needle, at, end)
        return self._find_by_tail(memory, at, end, self._from)

    @cached_property
    def _tail(self) -> Any:
        """The expression that finds the text from its rarest byte on; None if memmem must do."""
        try:
            tail = self.needle[self._from :]
            return compile_expression(tail, ignore_case=False, literal=True, latin1=True)
        except ConfigError:
            return None  # RE2 is missing, or the text is too long for it

    def _find_by_tail(self, memory: Memory, at: int, end: int, skipped: int) -> int:
        """Find the text from its rarest byte on; by memmem if that byte is too frequent."""
        head, buffer, look_from = self.needle[:skipped], memory.buffer, at + skipped
        for _ in range(_TAIL_MISSES):
            match = self._tail.search(buffer, look_from, end) if look_from < end else None
            if match is None:
                return -1
            place = match.start() - skipped
            if buffer[place : place + skipped] == head:
                return int(place)
            look_from = match.start() + 1
        return memory.find(self.needle, look_from - skipped, end)


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
_FIRST_SAMPLE = 1 << 12
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
    """A checked and compiled pattern; ConfigError says why it is refused."""

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
            self._finder = self.finder(Frequencies(Memory(buffer, min(used, _FIRST_SAMPLE))))
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
