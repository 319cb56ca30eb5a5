"""Splits documents into sections by their headers: Markdown, reStructuredText, AsciiDoc, HTML.

SECURITY: a document may be hostile, so each line is examined once, by expressions that do not
backtrack.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from atoll.agent.retrieval.types import suffix_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atoll.agent.retrieval.sources import SourceText
    from atoll.agent.retrieval.types import Unit


LONGEST_CODE, LONGEST_SECTION = 6_000, 2_000
"""Characters of a unit's body."""
_WINDOW = 1_500


def windows(source: SourceText, kind: str = "lines") -> list[Unit]:
    """Return a text as windows of lines, which end at an empty line if there is one."""
    spans = list(_spans(source.text, 0, len(source.text), _WINDOW))
    return [_part(source, source.unit(kind, source.stem, (1, 1)), *span) for span in spans]


def bounded(source: SourceText, units: list[Unit], longest: int) -> Iterator[Unit]:
    """Return the units, with long ones split into parts of the same name."""
    for unit in units:
        if len(unit.body) <= longest:
            yield unit
        elif unit.end - unit.start == len(unit.body):
            for span in _spans(source.text, unit.start, unit.end, longest):
                yield _part(source, unit, *span)
        else:  # a class without its methods: its lines are not contiguous
            for start, end in _spans(unit.body, 0, len(unit.body), longest):
                yield replace(unit, body=unit.body[start:end])


def _part(source: SourceText, unit: Unit, start: int, end: int) -> Unit:
    first, last = source.line_of(start), source.line_of(max(start, end - 1))
    body = source.text[start:end]
    return replace(unit, body=body, start_line=first, end_line=last, start=start, end=end)


def _spans(text: str, start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    while start < end:
        stop = min(end, start + size)
        if stop < end:
            stop = _good_end(text, start, stop)
        if text[start:stop].strip():
            yield start, stop
        start = stop


def _good_end(text: str, start: int, stop: int) -> int:
    """Return where to split: after an empty line in the second half, else any line, else `stop`."""
    half = start + (stop - start) // 2
    for ending in ("\n\n", "\n"):
        at = text.rfind(ending, half, stop)
        if at >= 0:
            return at + len(ending)
    return stop


_Header = tuple[int, int, str]
"""Line, level, title."""
_HASHES = re.compile(r"(#{1,6})[ \t]+(\S.{0,300})")
_EQUALS = re.compile(r"(={1,6})[ \t]+(\S.{0,300})")
_STARS = re.compile(r"(\*{1,8})[ \t]+(\S.{0,300})")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_HTML_HEADER = re.compile(r"<h([1-6])\b[^<>]{0,300}>", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]{1,500}>")
_UNDERLINES = frozenset("=-~^\"'`#*+.:_")
_LONGEST_TITLE = 120


def section_units(source: SourceText) -> list[Unit]:
    """Return the sections, each named by the headers above it; none if there is no header."""
    suffix = suffix_of(source.path)
    headers = list(_FINDERS.get(suffix, _marked_headers)(source))
    if not headers:
        return []
    units = [_unit(source, name, lines) for name, lines in _named(source, headers)]
    units = [unit for unit in units if unit.body.strip()]
    return [_without_tags(unit) for unit in units] if suffix in _HTML else units


def _named(source: SourceText, headers: list[_Header]) -> Iterator[tuple[str, tuple[int, int]]]:
    if headers[0][0] > 1:
        yield source.stem, (1, headers[0][0] - 1)
    above: list[tuple[int, str]] = []
    ends = [line - 1 for line, _, _ in headers[1:]] + [source.line_count]
    for (line, level, title), end in zip(headers, ends, strict=True):
        above = [header for header in above if header[0] < level] + [(level, title)]
        yield " > ".join(name for _, name in above), (line, end)


def _unit(source: SourceText, name: str, lines: tuple[int, int]) -> Unit:
    return source.unit("section", name, lines)


def _without_tags(unit: Unit) -> Unit:
    return replace(unit, body=_TAG.sub(" ", unit.body), name=_TAG.sub(" ", unit.name).strip())


def _marked_headers(source: SourceText) -> Iterator[_Header]:
    """Yield the headers of Markdown, `# Title` or underlined, outside of fences."""
    fence, before = "", ""
    for number, line in _numbered(source):
        mark = _FENCE.match(line)
        if mark and (not fence or mark[1] == fence):
            fence = "" if fence else mark[1]
        elif not fence and (header := _HASHES.match(line)):
            yield number, len(header[1]), _title(header[2].rstrip("# \t"))
        elif not fence and before.strip() and _is_rule(line, "=-") and not _is_item(before):
            yield number - 1, 1 if line[0] == "=" else 2, _title(before)
        before = "" if mark else line


def _underlined_headers(source: SourceText) -> Iterator[_Header]:
    """Yield the headers of reStructuredText; levels follow the order in which marks first occur."""
    levels: list[str] = []
    before = ""
    for number, line in _numbered(source):
        title = before.strip()
        fits = title and len(line.rstrip()) >= len(title)
        if fits and not _is_rule(before, _UNDERLINES) and _is_rule(line, _UNDERLINES):
            if line[0] not in levels:
                levels.append(line[0])
            yield number - 1, levels.index(line[0]) + 1, _title(title)
        before = line


def _prefixed_headers(mark: re.Pattern[str]) -> Callable[[SourceText], Iterator[_Header]]:
    def find(source: SourceText) -> Iterator[_Header]:
        for number, line in _numbered(source):
            if header := mark.match(line):
                yield number, len(header[1]), _title(header[2])

    return find


def _html_headers(source: SourceText) -> Iterator[_Header]:
    last = 0
    for match in _HTML_HEADER.finditer(source.text):
        line = source.line_of(match.start())
        if line > last:  # a second header on the line belongs to the first
            end = source.text.find("<", match.end(), match.end() + _LONGEST_TITLE)
            title = source.text[match.end() : end if end >= 0 else match.end() + _LONGEST_TITLE]
            yield line, int(match[1]), _title(title)
            last = line


def _numbered(source: SourceText) -> Iterator[tuple[int, str]]:
    return enumerate(source.text.split("\n"), 1)


def _is_rule(line: str, marks: frozenset[str] | str) -> bool:
    line = line.rstrip()
    return len(line) >= 3 and line[0] in marks and line == line[0] * len(line)


def _is_item(line: str) -> bool:
    return line.lstrip()[:2] in ("- ", "* ", "> ") or line.lstrip().startswith("|")


def _title(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_TITLE] or "untitled"


_HTML = (".html", ".htm", ".xhtml")
_FINDERS: dict[str, Callable[[SourceText], Iterator[_Header]]] = {
    ".rst": _underlined_headers,
    ".adoc": _prefixed_headers(_EQUALS),
    ".org": _prefixed_headers(_STARS),
    **dict.fromkeys(_HTML, _html_headers),
}
