"""A text with the offsets of its lines, from which chunkers make units."""

from __future__ import annotations

import os
import re
from bisect import bisect_right

from atoll.agent.retrieval.types import Unit

_LINE_END = re.compile("\n")
_SPACES = re.compile(r"\s+")
_LONGEST, _LONGEST_NAME, _LONGEST_DOC = 400, 300, 4_000


class Source:
    """The text at a path; lines are counted from 1 and end with a newline only."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
        if len(self._starts) > 1 and self._starts[-1] == len(text):
            self._starts.pop()  # the last newline begins no further line

    @property
    def stem(self) -> str:
        """The file's name, for units without a name of their own."""
        return os.path.basename(self.path)

    @property
    def line_count(self) -> int:
        """How many lines there are; at least one."""
        return len(self._starts)

    def start_of(self, line: int) -> int:
        """Return the offset at which a line begins; the text's length if there is no such line."""
        return self._starts[line - 1] if line <= len(self._starts) else len(self.text)

    def line_of(self, offset: int) -> int:
        """Return the number of the line that contains a character."""
        return bisect_right(self._starts, offset)

    def lines(self, first: int, last: int) -> str:
        """Return the text of the lines from `first` to `last`."""
        return self.text[self.start_of(first) : self.start_of(last + 1)]

    def unit(
        self,
        kind: str,
        name: str,
        lines: tuple[int, int],
        *,
        signature: str = "",
        doc: str = "",
        body: str | None = None,
    ) -> Unit:
        """Return a unit of whole lines, the last included."""
        span = self.start_of(lines[0]), self.start_of(lines[1] + 1)
        return self.span(kind, name, span, signature=signature, doc=doc, body=body)

    def span(
        self,
        kind: str,
        name: str,
        span: tuple[int, int],
        *,
        signature: str = "",
        doc: str = "",
        body: str | None = None,
    ) -> Unit:
        """Return a unit of some characters, the last not included."""
        start, end = span
        return Unit(
            path=self.path,
            kind=kind,
            name=name[:_LONGEST_NAME],
            signature=_SPACES.sub(" ", signature[: 4 * _LONGEST]).strip()[:_LONGEST],
            doc=doc[:_LONGEST_DOC],
            body=self.text[start:end] if body is None else body,
            start_line=self.line_of(start),
            end_line=self.line_of(max(start, end - 1)),
            start=start,
            end=end,
        )

    def without(self, units: list[Unit], start: int, end: int) -> str:
        """Return the text of a span without the units in it."""
        parts, at = [], start
        for unit in sorted(units, key=lambda one: one.start):
            parts.append(self.text[at : unit.start] if unit.start > at else "")
            at = max(at, unit.end)
        return "".join([*parts, self.text[at:end]])

    def rest(self, units: list[Unit], doc: str = "") -> list[Unit]:
        """Return the text outside of the units as one of kind `module`; none if it is empty."""
        body = self.without(units, 0, len(self.text))
        if not body.strip():
            return []
        return [self.unit("module", self.stem, (1, self.line_count), doc=doc, body=body)]
