"""Finds a text that every match of a regular expression contains: it is cheap to find first."""

from __future__ import annotations

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
