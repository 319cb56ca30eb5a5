"""Sources of an index: the files below a folder, or texts by name.

SECURITY: a guest may own the folder. The walk enters folders by descriptor and follows no link.
Files are opened with openat2, which refuses paths that lead out, and must be regular files then.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from atoll.agent.retrieval.types import IGNORED_FOLDERS, Unit
from atoll.errors import RetrievalError
from atoll.files.folder import open_beneath
from atoll.guest.shared.local_files import MAX_FOLDERS_DEEP

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping


_LINE_END = re.compile("\n")
_SPACES = re.compile(r"\s+")
_LONGEST, _LONGEST_NAME, _LONGEST_DOC = 400, 300, 4_000


class SourceText:
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
        """Return the offset at which a line begins; the text's length after the last line."""
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
        for unit in sorted(units, key=lambda part: part.start):
            parts.append(self.text[at : unit.start] if unit.start > at else "")
            at = max(at, unit.end)
        return "".join([*parts, self.text[at:end]])

    def rest(self, units: list[Unit], doc: str = "") -> list[Unit]:
        """Return the text outside of the units as one of kind `module`; none if it is empty."""
        body = self.without(units, 0, len(self.text))
        if not body.strip():
            return []
        return [self.unit("module", self.stem, (1, self.line_count), doc=doc, body=body)]


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
_JUST_NOW_NS = 50_000_000
"""Within one tick of the kernel's clock a file may change again and keep its times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file or text; `stamp` differs if it may have changed, and is empty if that is unknown."""

    path: str
    stamp: str
    size: int


class Source(Protocol):
    """The texts that are indexed."""

    def entries(self) -> Generator[Entry]:
        """Yield all entries, in order."""

    def read(self, path: str, most: int) -> bytes | None:
        """Return an entry's bytes; None if it is deleted, not a file, or larger than `most`."""

    def close(self) -> None:
        """Release what it holds."""


class FolderSource:
    """Files below a folder; links are not followed, some folders are not entered."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        try:
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            name, reason = os.fspath(root), exc.strerror
            raise RetrievalError(f"cannot search the folder {name!r}: {reason}") from None

    def entries(self) -> Generator[Entry]:
        """Yield regular files; the stamp has the size, times and inode."""
        now = time.time_ns()
        for path, info in _below(self._root, "", MAX_FOLDERS_DEEP):
            facts = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
            recent = now - max(info.st_mtime_ns, info.st_ctime_ns) < _JUST_NOW_NS
            stamp = "" if recent else ":".join(map(str, facts))
            yield Entry(path=path, stamp=stamp, size=info.st_size)

    def read(self, path: str, most: int) -> bytes | None:
        """Return the bytes of a file."""
        try:
            fd = open_beneath(self._root, path, _FILE)
        except OSError:
            return None
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            data = file.read(most + 1)
        return data if len(data) <= most else None

    def close(self) -> None:
        """Close the folder."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1


class TextSource:
    """Texts by name."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        # UTF-8 has no lone surrogates; one other character takes their place, so offsets stay.
        self._texts = {name: text.encode("utf-8", "replace") for name, text in texts.items()}

    def entries(self) -> Generator[Entry]:
        """Yield the texts; the stamp is a hash."""
        for name, data in sorted(self._texts.items()):
            stamp = hashlib.sha256(data).hexdigest()
            yield Entry(path=name, stamp=stamp, size=len(data))

    def read(self, path: str, most: int) -> bytes | None:
        """Return the text as UTF-8."""
        data = self._texts.get(path)
        return data if data is not None and len(data) <= most else None

    def close(self) -> None:
        """Drop the texts."""
        self._texts = {}


def _below(folder: int, prefix: str, deeper: int) -> Iterator[tuple[str, os.stat_result]]:
    for name, info in _contents(folder):
        if stat.S_ISREG(info.st_mode):
            yield prefix + name, info
        elif stat.S_ISDIR(info.st_mode) and deeper and name not in IGNORED_FOLDERS:
            yield from _inside(folder, name, f"{prefix}{name}/", deeper - 1)


def _inside(
    folder: int, name: str, prefix: str, deeper: int
) -> Iterator[tuple[str, os.stat_result]]:
    try:
        inner = os.open(name, _FOLDER, dir_fd=folder)
    except OSError:  # deleted, replaced by a link, or not readable
        return
    try:
        yield from _below(inner, prefix, deeper)
    finally:
        os.close(inner)


def _contents(folder: int) -> list[tuple[str, os.stat_result]]:
    """Return a folder's entries sorted by name, without names that are not UTF-8."""
    result = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError, UnicodeEncodeError):
                entry.name.encode()
                result.append((entry.name, entry.stat(follow_symlinks=False)))
    return sorted(result, key=lambda entry: entry[0])
