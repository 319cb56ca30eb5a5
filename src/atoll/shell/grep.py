"""Searches with the `grep` of a foreign sandbox: finds the files first, then their lines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from atoll.guest.shared import search
from atoll.guest.shared.globs import chooser
from atoll.guest.shared.local_files import MOST_FOLDERS_DEEP
from atoll.guest.shared.texts import MAX_FILE_BYTES
from atoll.shell import script_output
from atoll.shell.commands import encoded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from atoll.shell.line import Line

    Hits = tuple[str, list[tuple[int, str]]]

FILES_AT_ONCE, WORDS_AT_ONCE = 64, 40_000
MAX_PATTERN = 20_000


async def grep(
    line: Line,
    pattern: str,
    path: str,
    *,
    glob: str | None,
    regex: bool,
    ignore_case: bool,
    max_results: int,
) -> dict[str, Any]:
    """Return the lines that match the pattern; a regular expression is one of `grep -E`."""
    _check(pattern, regex=regex)
    how = "-a" + ("E" if regex else "F") + ("i" if ignore_case else "")
    task = _Search(line, path, pattern, how)
    chosen, matches = chooser(glob), list[list[Any]]()
    names, cut = await task.candidates()
    files = [name for name in names if chosen(name or os.path.basename(path))]
    async for name, hits in task.hits(files, max_results + 1):
        matches += [[name or os.path.basename(path), number, text] for number, text in hits]
        if len(matches) > max_results:
            cut = True
            break
    return {"matches": matches[:max_results], "truncated": cut}


def _check(pattern: str, *, regex: bool) -> None:
    search.check(pattern, regex)
    if "\0" in pattern:
        raise ValueError("the pattern has a zero byte: no text has one")
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"the pattern has more than {MAX_PATTERN:,} characters")


class _Search:
    """One pattern below one path."""

    def __init__(self, line: Line, path: str, pattern: str, how: str) -> None:
        self._line, self._path, self._pattern, self._how = line, path, pattern, how

    async def candidates(self) -> tuple[list[str], bool]:
        """Return the files that contain the pattern; "" is the path itself."""
        words = [encoded(self._path), self._how, encoded(self._pattern)]
        limits = [str(MOST_FOLDERS_DEEP + 1), str(MAX_FILE_BYTES + 1)]
        answer = await self._line.ask("candidates", *words, *limits)
        if answer.startswith(b"-"):
            reason = answer[1:].decode("utf-8", "replace").strip().removeprefix("grep: ")
            raise ValueError(f"not a regular expression: {reason[:200]}")
        return script_output.candidates(answer)

    async def hits(self, files: list[str], room: int) -> AsyncIterator[Hits]:
        """Return the lines that match, file by file, up to `room` of each."""
        for some in _batches(files):
            base = [encoded(self._path), self._how, encoded(self._pattern), str(room)]
            if some == [""]:
                base[0], names = encoded(""), [encoded(self._path)]
            else:
                names = [encoded(name) for name in some]
            found = script_output.lines(await self._line.ask("lines", *base, *names), len(some))
            for name, hits in zip(some, found, strict=True):
                yield name, hits


def _batches(files: list[str]) -> Iterator[list[str]]:
    """Yield lists of as many files as fit into one command."""
    some: list[str] = []
    size = 0
    for name in files:
        length = len(encoded(name))
        if some and (len(some) == FILES_AT_ONCE or size + length > WORDS_AT_ONCE):
            yield some
            some, size = [], 0
        some.append(name)
        size += length
    if some:
        yield some
