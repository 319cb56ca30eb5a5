"""Helpers that guest code may call by name: pure functions over text, most over `context`.

A pattern is a regular expression, matched line by line (`^` and `$` are a line's ends).
"""

from __future__ import annotations

from .own_files import Hits

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from typing import Any, Callable, Iterator

    from ..shared.messages import Json

HEADER = r"^#{1,6}\s+.+$"


def chunk_text(text: str, size: int, overlap: int = 0) -> list[str]:
    """Cut `text` into pieces of `size` characters, each sharing `overlap` with the one before."""
    _check_chunking(size, overlap)
    if not text:
        return []
    step = size - overlap
    last = max(len(text) - overlap, 1)  # a piece that would only repeat the overlap is left out
    return [text[start : start + size] for start in range(0, last, step)]


def chunk_by_size(text: str, size: int = 10_000, overlap: int = 0) -> list[str]:
    """Like chunk_text, but pieces end at a line's end where one is near."""
    _check_chunking(size, overlap)
    chunks, start = [], 0
    while start < len(text):
        end = _line_end(text, start, min(start + size, len(text)))
        chunks.append(text[start:end])
        if end == len(text):
            break
        start = max(end - overlap, start + 1)
    return chunks


def chunk_by_headers(text: str, level: int = 6) -> list[Json]:
    """Cut Markdown at its headers down to `level`: dicts of header, level, content, start."""
    if not 1 <= level <= 6:
        raise ValueError("level must be from 1 to 6, not {}".format(level))
    marks = list(_compile(r"^(#{1,%d})\s+(.+)$" % level).finditer(text))
    chunks = []
    if text[: marks[0].start() if marks else len(text)].strip():
        chunks.append(("", 0, 0))
    chunks += [(mark.group(2).strip(), len(mark.group(1)), mark.start()) for mark in marks]
    ends = [start for _, _, start in chunks[1:]] + [len(text)]
    return [
        {"header": header, "level": depth, "content": text[start:end], "start": start}
        for (header, depth, start), end in zip(chunks, ends)
    ]


def extract_json(text: str) -> Any:
    """The first JSON object or array in `text` (fenced or in prose), parsed; None without one."""
    import json

    decoder = json.JSONDecoder()
    for mark in _compile(r"[\[{]").finditer(text):
        try:
            return decoder.raw_decode(text, mark.start())[0]
        except ValueError:
            continue
    return None


def _check_chunking(size: int, overlap: int) -> None:
    if size <= 0:
        raise ValueError("size must be positive, not {}".format(size))
    if not 0 <= overlap < size:
        raise ValueError("overlap must be from 0 to size - 1, not {}".format(overlap))


def _line_end(text: str, start: int, end: int) -> int:
    if end == len(text):
        return end
    cut = text.rfind("\n", start + (end - start) // 2, end)
    return end if cut < 0 else cut + 1


class ContextHelpers:
    """The helpers that look into `context`, read anew at each call."""

    NAMES = (
        "search_context",
        "find_line",
        "get_line",
        "count_lines",
        "count_matches",
        "quote_match",
        "extract_sections",
    )

    def __init__(self, get_context: Callable[[], Any]) -> None:
        self._get = get_context

    def search_context(self, pattern: str, window: int = 200, max_results: int = 100) -> list[Json]:
        """Matches with `window` characters around: dicts of match, start, end, line, text.

        The list has the first `max_results`, and its .total is how many there are.
        """
        if window < 0:
            raise ValueError("window must not be negative, not {}".format(window))
        text, line, seen = self._text(), 1, 0
        hits: list[Json] = []
        total = 0
        for mark in self._matches(pattern, text):
            total += 1
            if total > max_results:
                continue
            line, seen = line + text.count("\n", seen, mark.start()), mark.start()
            hits.append(
                {
                    "match": mark.group(),
                    "start": mark.start(),
                    "end": mark.end(),
                    "line": line,
                    "text": text[max(0, mark.start() - window) : mark.end() + window],
                }
            )
        return Hits(hits, total)

    def find_line(self, pattern: str) -> list[tuple[int, str]]:
        """Lines that match, as (number, line); numbers start at 1."""
        search = _compile(pattern).search
        lines = self._text().split("\n")
        return [(number, line) for number, line in enumerate(lines, 1) if search(line)]

    def get_line(self, number: int) -> str:
        """Line `number`, counted from 1; IndexError past the end."""
        text, start = self._text(), 0
        for _ in range(number - 1):
            start = text.find("\n", start) + 1
            if not start:
                break
        if number < 1 or (number > 1 and not start):
            raise IndexError(
                "there is no line {}; the context has {}".format(number, self.count_lines())
            )
        end = text.find("\n", start)
        return text[start:] if end < 0 else text[start:end]

    def count_lines(self, pattern: str | None = None) -> int:
        """How many lines there are, or how many match."""
        if pattern is not None:
            return len(self.find_line(pattern))
        text = self._text()
        return text.count("\n") + (0 if not text or text.endswith("\n") else 1)

    def count_matches(self, pattern: str) -> int:
        """How many times the pattern matches."""
        return sum(1 for _ in self._matches(pattern, self._text()))

    def quote_match(self, pattern: str, max_length: int = 100) -> str | None:
        """The first match's own text, cut at `max_length`, to quote exactly; None without one."""
        for mark in self._matches(pattern, self._text()):
            return mark.group()[:max_length]
        return None

    def extract_sections(self, pattern: str = HEADER) -> list[Json]:
        """Cut the context at lines that match: dicts of header, content, start, end."""
        text = self._text()
        marks = list(self._matches(pattern, text))
        ends = [mark.start() for mark in marks[1:]] + [len(text)]
        return [
            {
                "header": mark.group(),
                "content": text[mark.end() : end].strip("\n"),
                "start": mark.start(),
                "end": end,
            }
            for mark, end in zip(marks, ends)
        ]

    def _text(self) -> str:
        value = self._get()
        if value is None:
            raise ValueError("there is no context: give one to create_sandbox(context=...)")
        if isinstance(value, str):
            return value
        import json

        return json.dumps(value, indent=1, default=str)

    def _matches(self, pattern: str, text: str) -> Iterator[re.Match[str]]:
        return _compile(pattern).finditer(text)


def _compile(pattern: str) -> re.Pattern[str]:
    import re  # on first use: a guest that never searches starts without it

    try:
        return re.compile(pattern, re.MULTILINE)
    except re.error as exc:
        raise ValueError(
            "bad pattern {!r}: {} (for literal text use re.escape)".format(pattern, exc)
        ) from None
