"""Functions that find a pattern in bytes on the host, in time linear in the number of bytes.

SECURITY: never `re` in this process: a guest's text could make it backtrack for ever. Where RE2 is
not installed, `re` runs in a child process that can be killed (see `backtracking`).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.files.backtracking import ChildExpression
from atoll.files.required import required_text
from atoll.guest.search import check

if TYPE_CHECKING:
    from atoll.guest.search import Find

Matcher = Callable[[bytearray, int], "Find"]
"""Takes a buffer and how many of its bytes to search, which end with a line end."""

_NOT_IN_RE2 = ("(?=", "(?!", "(?<=", "(?<!")
_FLAGS = b"(?m)"
MOST_INSTRUCTIONS = 2_000
"""Instructions of a compiled expression: one byte of text may cost as many steps."""
_MISSES = 32
"""Lines with the required text but no match, after which a block is searched without it."""

_SAMPLE, _A_MISS = 1 << 12, 1 << 13
"""Bytes that show which byte of a text is rare, and bytes of a buffer for each allowed miss."""

# memmem (by ctypes) releases the GIL, and is twice as fast as bytes.find
_memmem = ctypes.CDLL(None).memmem
_memmem.restype = ctypes.c_void_p
_memmem.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)


def make_matcher(pattern: str, *, regex: bool, ignore_case: bool) -> Matcher:
    """Return the matcher of a pattern; ConfigError says what is wrong with the pattern."""
    check_pattern(pattern, regex=regex)
    needle = pattern.encode("utf-8", "surrogateescape")
    if regex:
        required = "" if ignore_case else required_text(pattern)
        expression = compile_expression(needle, ignore_case=ignore_case)
        return _either(required.encode(), expression) if required else _expression(expression)
    if not ignore_case:
        return _literal(needle)
    if pattern.isascii():
        return _folded(needle.lower())
    return _expression(compile_expression(needle, ignore_case=True, literal=True))


def check_pattern(pattern: str, *, regex: bool) -> None:
    """Raise ConfigError if the pattern cannot be searched for line by line."""
    try:
        check(pattern, regex)
    except ValueError as exc:
        raise ConfigError(str(exc)) from None


def _literal(needle: bytes) -> Matcher:
    """Find a text by its rarest byte, which takes a seventh of memmem's time; or by memmem.

    The first block shows which byte is rare. After too many misses memmem takes over, and the next
    block decides again.
    """
    size, offset = len(needle), -1

    def prepare(buffer: bytearray, used: int) -> Find:
        nonlocal offset
        if offset < 0:
            offset = _rarest(needle, buffer[:_SAMPLE])
        byte, misses = needle[offset], used // _A_MISS
        by_memmem: Find | None = None

        def find(at: int) -> int:
            nonlocal offset, misses, by_memmem
            while misses > 0:
                start = buffer.find(byte, at + offset, used) - offset
                if start < at or start + size > used:
                    return -1
                if buffer.startswith(needle, start):
                    return start
                misses, at = misses - 1, start + 1
            offset = -1
            by_memmem = by_memmem or _by_memmem(needle, buffer, used)
            return by_memmem(at)

        return find

    prepare.copy = lambda: _literal(needle)  # type: ignore[attr-defined] # for another thread
    return prepare


def _rarest(needle: bytes, sample: bytearray) -> int:
    """Return the index of the text's byte that occurs least often in the sample."""
    return min(range(len(needle)), key=lambda at: sample.count(needle[at]))


def _by_memmem(needle: bytes, buffer: bytearray, used: int) -> Find:
    held = ctypes.c_char.from_buffer(buffer)  # a reference keeps the buffer from being resized
    base, size = ctypes.addressof(held), len(needle)

    def find(at: int, _held: object = held) -> int:
        found = _memmem(base + at, used - at, needle, size)
        return -1 if found is None else found - base

    return find


def _folded(needle: bytes) -> Matcher:
    """Find a text without regard to the case of ASCII letters."""
    literal = _literal(needle)

    def prepare(buffer: bytearray, used: int) -> Find:
        with memoryview(buffer) as view:
            return literal(bytearray(view[:used]).lower(), used)

    return prepare


def _expression(expression: Any) -> Matcher:
    def prepare(buffer: bytearray, used: int) -> Find:
        if isinstance(expression, ChildExpression):
            expression.forget()

        def find(at: int) -> int:
            match = expression.search(buffer, at, used)
            return -1 if match is None or match.start() >= used else match.start()

        return find

    return prepare


def _either(required: bytes, expression: Any) -> Matcher:
    """Match only lines that have the required text; all lines if too few of those match."""
    literal, anywhere = _literal(required), _expression(expression)

    def prepare(buffer: bytearray, used: int) -> Find:
        find_text, find_any, misses = literal(buffer, used), anywhere(buffer, used), 0

        def find(at: int) -> int:
            nonlocal misses
            while misses < _MISSES:
                place = find_text(at)
                if place < 0:
                    return -1
                begin, end = buffer.rfind(b"\n", at, place) + 1, buffer.find(b"\n", place)
                if expression.search(buffer, begin or at, end) is not None:
                    return place
                misses, at = misses + 1, end + 1
            return find_any(at) if at < used else -1

        return find

    return prepare


def compile_expression(
    pattern: bytes, *, ignore_case: bool, literal: bool = False, latin1: bool = False
) -> Any:
    """Compile a pattern with RE2, or with `re` in a child process where RE2 is missing.

    ConfigError says what is wrong with the pattern.
    """
    try:
        import re2  # noqa: PLC0415 - an extra
    except ImportError:
        if literal and not ignore_case:
            raise ConfigError("a text is found without an expression") from None
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
    if expression.programsize > MOST_INSTRUCTIONS:
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
