"""Compiles regular expressions that are searched for in time linear in the number of bytes.

SECURITY: never `re` in this process: a guest's text could make it backtrack for ever. Where RE2 is
not installed, `re` runs in a child process that can be killed (see `backtracking`).
"""

from __future__ import annotations

import re
from typing import Any

from atoll.errors import ConfigError
from atoll.search.backtracking import ChildExpression, Match

_NOT_IN_RE2 = ("(?=", "(?!", "(?<=", "(?<!")
_FLAGS = b"(?m)"
MOST_INSTRUCTIONS = 2_000
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

    ConfigError says what is wrong with the pattern.
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
