"""Finds the lines of a text that a pattern is in."""

from __future__ import annotations

import os
import re

from .texts import MAX_FILE_BYTES, read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator, Tuple

    from .workspace import Found

    Matcher = Callable[[bytes, int], Tuple[int, int]]
    """Where it begins and ends in some bytes, from a place on; -1 and -1 if it is not there."""
    MakeMatcher = Callable[[str, bool, bool], Matcher]
    """The pattern; whether it is a regular expression; whether case does not count."""

NOWHERE = (-1, -1)
PROBE_BYTES = 8192
MAX_LINE = 2_000
"""Characters of a line that are shown."""


def matcher(pattern: str, regex: bool, ignore_case: bool) -> Matcher:
    """With nothing but the standard library; ValueError if the pattern makes no sense."""
    needle = pattern.encode("utf-8", "surrogateescape")
    if not needle:
        raise ValueError("the pattern is empty")
    if not regex and not ignore_case:
        return _literal(needle)
    flags = re.MULTILINE | (re.IGNORECASE if ignore_case else 0)
    try:
        found = re.compile(needle if regex else re.escape(needle), flags).search
    except re.error as exc:
        raise ValueError("not a regular expression: {}".format(exc)) from None

    def find(data: bytes, start: int) -> tuple[int, int]:
        match = found(data, start)
        return match.span() if match else NOWHERE

    return find


def _literal(needle: bytes) -> Matcher:
    def find(data: bytes, start: int) -> tuple[int, int]:
        at = data.find(needle, start)
        return (at, at + len(needle)) if at >= 0 else NOWHERE

    return find


def lines_with(find: Matcher, found: Found, room: int) -> Iterator[tuple[int, str]]:
    """Number and text of up to `room` lines with a match; none of what is no text."""
    if found.info.st_size > MAX_FILE_BYTES:
        return
    try:
        fd = found.open()
    except OSError:
        return  # gone, or not ours to read
    try:
        data = read_file(fd, os.fstat(fd))
    except OSError:
        return
    finally:
        os.close(fd)
    if b"\0" not in data[:PROBE_BYTES]:
        yield from matching_lines(find, data, room)


def matching_lines(find: Matcher, data: bytes, room: int) -> Iterator[tuple[int, str]]:
    """The same of bytes that are there."""
    at, line, counted = 0, 1, 0
    while room > 0 and at < len(data):
        start, _ = find(data, at)
        if start < 0:
            return
        line += data.count(b"\n", counted, start)
        begin = data.rfind(b"\n", 0, start) + 1
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        yield line, shown(data[begin:end])
        counted, at, room = start, end + 1, room - 1


def shown(line: bytes) -> str:
    """A line as it is shown: one that is too long is cut."""
    text = line[: 4 * MAX_LINE].decode("utf-8", "replace").rstrip("\r")
    return text if len(text) <= MAX_LINE else text[:MAX_LINE] + "…"
