"""Reads and searches the guest's own files, and prints hits: used by guest/agent/explorer."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable

    from ..shared.messages import Json

SHOWN_LINE = 200
SHOWN_CHARACTERS = 7_500
"""Of a list of hits when it is printed: more would be cut somewhere in the middle."""
_SKIP = 1 << 20


class Hits(list):  # type: ignore[type-arg]
    """A list of dicts, printed one a line below their count.

    `total` is how many there are, which may be more than the list has; if not `counted`, there
    are at least so many.
    """

    _words: dict[str, int] | None = None

    def __init__(
        self,
        items: Iterable[Any] = (),
        total: int | None = None,
        counted: bool = True,
        words: dict[str, int] | None = None,
    ) -> None:
        """`words` has the lines with each word of a pattern that was not found."""
        super().__init__(items)
        self._words = words
        self.total = len(self) if total is None else total
        self.counted = counted

    @property
    def more(self) -> bool:
        """Whether the list leaves some out."""
        return self.total > len(self) or not self.counted

    def __getitem__(self, index: Any) -> Any:
        """Return a hit; of a slice, a list that knows how many there are in all."""
        result = super().__getitem__(index)
        return Hits(result, self.total, self.counted) if isinstance(index, slice) else result

    def __repr__(self) -> str:
        lines, room = [], SHOWN_CHARACTERS
        for item in self:
            lines.append(_line(item))
            room -= len(lines[-1]) + 1
            if room < 0:
                lines.pop()
                break
        return "\n".join([self._head(len(lines)), *lines])

    def _head(self, shown: int) -> str:
        if not self.total and self.counted:
            words = ", ".join("{} {:,}".format(*pair) for pair in (self._words or {}).items())
            return "(nothing found{})".format(
                "; lines with a word of it: " + words if words else ""
            )
        least = "" if self.counted else "at least "
        head = "{}{:,} found".format(least, self.total)
        if len(self) < self.total or not self.counted:
            head += "; this list holds {:,} of them, and .total is the number found".format(
                len(self)
            )
        if shown < len(self):
            head += "; {:,} are shown here".format(shown)
        return head + ":"


class Ranked(Hits):
    """The hits that fit a query best: as many as were asked for, if there are so many."""

    def __init__(self, items: Iterable[Any], most: int) -> None:
        """Take the hits, and how many were asked for."""
        super().__init__(items)
        self._full = len(self) >= most

    def _head(self, shown: int) -> str:
        head = super()._head(shown)
        return head.replace(" found", " that fit best", 1) if self._full else head


def _line(item: Any) -> str:
    """Return a hit as `line [start:end] text`; anything else as its fields."""
    if not isinstance(item, dict):
        return repr(item)
    if "line" in item and "text" in item:
        where = " [{}:{}]".format(item["start"], item["end"]) if "start" in item else ""
        path = "{}:".format(item["path"]) if "path" in item else ""
        return "{}{}{} {}".format(path, item["line"], where, item["text"])
    return "  ".join("{}={}".format(key, value) for key, value in item.items())


def open_own(path: str, mode: str = "r") -> Any:
    """Open a file of the guest; the error says how to find it."""
    try:
        if mode == "rb":
            return open(path, mode)
        return open(path, encoding="utf-8", errors="replace", newline="")
    except (FileNotFoundError, IsADirectoryError) as exc:
        raise type(exc)(
            "there is no file {!r}, here or among the documents: try list_dir(). "
            "The path comes first, as in grep(path, pattern) and peek(path, n)".format(path)
        ) from None


def peek_file(path: str, n: int, start: int) -> str:
    """Return `n` characters of a text file from `start` on; below 0 it counts from the end."""
    if not isinstance(n, int) or n < 0 or not isinstance(start, int):
        raise ValueError("peek(path, n, start) takes numbers, n from 0 on")
    with open_own(path) as file:
        left = start
        if start < 0:
            length = sum(map(len, iter(lambda: file.read(_SKIP), "")))
            file.seek(0)
            left = max(0, length + start)
        while left > 0:
            skipped = len(file.read(min(left, _SKIP)))
            if not skipped:
                return ""
            left -= skipped
        text: str = file.read(n)
        return text


def grep_file(path: str, pattern: str, ignore_case: bool, most: int) -> Hits:
    """Return the matching lines of a text file."""
    import re

    try:
        search = re.compile(pattern, re.IGNORECASE if ignore_case else 0).search
    except re.error as exc:
        raise ValueError("bad pattern {!r}: {}".format(pattern, exc)) from None
    hits, total, at = [], 0, 0
    with open_own(path) as file:
        for number, line in enumerate(file, 1):
            match = search(line.rstrip("\r\n"))
            if match:
                total += 1
                if total <= most:
                    hits.append(_hit(number, at, match, line))
            at += len(line)
    return Hits(hits, total)


def _hit(number: int, at: int, result: Any, line: str) -> Json:
    first = max(0, result.start() - SHOWN_LINE // 2)
    text = line.rstrip("\r\n")[first : first + SHOWN_LINE]
    return {"line": number, "start": at + result.start(), "end": at + result.end(), "text": text}


def entries_of(path: str) -> list[str] | None:
    """Return the names in a folder, folders with a slash; None if it is not a folder."""
    import os

    try:
        with os.scandir(path) as result:
            return [entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in result]
    except OSError:
        return None
