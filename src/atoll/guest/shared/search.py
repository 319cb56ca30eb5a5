"""Finds the lines of texts that a pattern is in, with nothing but the standard library.

Lines are searched one by one: no match goes over the end of one. files/searcher does the same on
the host, where a pattern must not be able to hold it up.
"""

from __future__ import annotations

import os
import re
import stat

from . import texts
from .globs import chooser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator

    from .messages import Json
    from .workspace import Found, Place

    Find = Callable[[int], int]
    """A place in the first line from here on, where a line begins, that fits; or -1."""
    Matcher = Callable[[bytes], Find]

PROBE_BYTES = 8192
MAX_LINE = 2_000
"""Characters of a line that are shown."""
_WHOLE_TEXT = re.compile(r"(?:[^\\]|\\[^AzZ])*\\[AzZ]", re.DOTALL)


def search(
    place: Place,
    pattern: str,
    path: str,
    *,
    glob: str | None,
    regex: bool,
    ignore_case: bool,
    max_results: int,
) -> Json:
    """Lines with the pattern in them, in files below `path` that fit `glob`."""
    find, chosen = matcher(pattern, regex, ignore_case), chooser(glob)
    matches: list[list[Any]] = []
    cut = False
    for file in _files(place, path):
        cut |= file.too_deep
        if stat.S_ISREG(file.info.st_mode) and chosen(file.path):
            data, headed = _heads(_text_of(file))
            cut |= headed
            hits = matching_lines(find, data, max_results + 1 - len(matches))
            matches += [[file.path, line, text] for line, text in hits]
        if len(matches) > max_results:
            cut = True
            break
    return {"matches": matches[:max_results], "truncated": cut}


def matcher(pattern: str, regex: bool, ignore_case: bool) -> Matcher:
    """Return a function that finds the pattern; ValueError if it is not valid."""
    check(pattern, regex)
    if regex or (ignore_case and not pattern.isascii()):
        return _expression(pattern if regex else re.escape(pattern), ignore_case)
    needle = pattern.encode("utf-8", "surrogateescape")
    if ignore_case:
        return _folded(needle.lower())
    return lambda data: lambda at: data.find(needle, at)


def check(pattern: str, regex: bool) -> None:
    """ValueError if it cannot be searched for line by line."""
    if not pattern:
        raise ValueError("the pattern is empty")
    if "\n" in pattern:
        raise ValueError("the pattern has a line end in it: search for one of its lines")
    if regex and _WHOLE_TEXT.match(pattern):
        text = "the regular expression has \\A, \\z or \\Z in it, but lines are searched one by one"
        raise ValueError(text + ": use ^ and $")


def _folded(needle: bytes) -> Matcher:
    def prepare(data: bytes) -> Find:
        lower = data.lower()
        return lambda at: lower.find(needle, at)

    return prepare


def _expression(pattern: str, ignore_case: bool) -> Matcher:
    flags = re.ASCII if pattern.isascii() else 0
    try:
        fits = re.compile(pattern, flags | (re.IGNORECASE if ignore_case else 0)).search
    except (re.error, RecursionError, OverflowError) as exc:
        raise ValueError("not a regular expression: {}".format(exc)) from None

    def prepare(data: bytes) -> Find:
        def find(at: int) -> int:
            while at < len(data):
                end = data.find(b"\n", at)
                end = len(data) if end < 0 else end
                if fits(data[at:end].decode("utf-8", "surrogateescape")):
                    return at
                at = end + 1
            return -1

        return find

    return prepare


def _files(place: Place, path: str) -> Iterator[Found]:
    """Yield the files of a folder; none if it does not exist."""
    try:
        yield from place.walk(path)
    except (OSError, ValueError):
        return


def _text_of(file: Found) -> bytes:
    """Return a file's text; skip binary, oversized, vanished and unreadable files."""
    if file.info.st_size > texts.MAX_FILE_BYTES:
        return b""
    try:
        fd = file.open()
    except OSError:
        return b""
    try:
        data = texts.read_file(fd, os.fstat(fd))
    except OSError:
        return b""
    finally:
        os.close(fd)
    return b"" if b"\0" in data[:PROBE_BYTES] else data


def _heads(data: bytes) -> tuple[bytes, bool]:
    """Return the text with long lines cut, and whether any was."""
    at, longest = 0, texts.LONGEST_LINE
    while len(data) - at > longest:
        end = data.rfind(b"\n", at, at + longest + 1)
        if end < 0:
            return b"\n".join(line[:longest] for line in data.split(b"\n")), True
        at = end + 1
    return data, False


def matching_lines(find: Matcher, data: bytes, room: int) -> Iterator[tuple[int, str]]:
    """Number and text of up to `room` lines with a match."""
    at, line, counted = 0, 1, 0
    find_from = find(data)
    while room > 0 and at < len(data):
        start = find_from(at)
        if start < 0:
            return
        line += data.count(b"\n", counted, start)
        begin = data.rfind(b"\n", 0, start) + 1
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        yield line, shown(data[begin:end])
        counted, at, room = start, end + 1, room - 1


def shown(line: bytes) -> str:
    """Return a line for display; a long one is cut."""
    text = line[: 4 * MAX_LINE].decode("utf-8", "replace").rstrip("\r")
    return text if len(text) <= MAX_LINE else text[:MAX_LINE] + "…"
