"""File operations in a sandbox without Python: by `sh` and the tools of a minimal container.

Scripts fetch, list and store; the operations themselves run here, by the same code as elsewhere.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from atoll.files.types import checked
from atoll.guest.shared import search
from atoll.guest.shared.globs import chooser
from atoll.guest.shared.local_files import MAX_FOLDERS_DEEP, check_name
from atoll.guest.shared.texts import MAX_FILE_BYTES, check_lines, count_lines, lines_of
from atoll.guest.shared.workspace import EMPTY, Workspace, code_of, page, words
from atoll.shell import fetched_files
from atoll.shell.fetched_files import FetchedFiles
from atoll.shell.remote_shell import MAX_FILE, encoded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from atoll.shell.remote_shell import RemoteShell

    Hits = tuple[str, list[tuple[int, str]]]

MAX_PATH, MAX_NAME = 4095, 255
CHANGES = frozenset({"delete", "move", "mkdir", "stat"})
MAX_LINES = 1 << 40
FILES_AT_ONCE, WORDS_AT_ONCE = 64, 40_000
MAX_PATTERN = 20_000


class PosixDialect:
    """Runs operations by scripts for `sh`."""

    def __init__(self, line: RemoteShell) -> None:
        self._line = line

    async def run(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        """Run an operation of guest/shared/workspace."""
        fault = _fault_of_path(params["path"])
        if not fault and operation in ("delete", "move"):
            fault = _fault_of_path(params.get("target", "x")) or _fault_of_name(params)
        if fault:
            files = FetchedFiles(fault=fault, refusal=fault)
            return Workspace(files).run(operation, params)  # an OSError or ValueError is an answer
        if operation == "grep":
            return checked(operation, await grep(self._line, **params))
        if operation in ("ls", "glob"):
            return await self._listed(operation, params)
        if operation in ("write", "upload"):
            return await self._stored(operation, params, FetchedFiles())
        if operation in CHANGES:
            return await self._changed(operation, params)
        return await self._fetched(operation, params)

    async def _changed(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        """Delete, move, make a folder or stat, in one script."""
        flag = params.get("recursive") or params.get("overwrite")
        words = [encoded(params["path"]), encoded(params.get("target", ".")), "1" if flag else "0"]
        reply = await self._line.ask("change", operation, *words, twice=operation == "stat")
        if operation == "stat":
            files = fetched_files.looked_up(reply)
        else:
            files = FetchedFiles(refusal=fetched_files.fault(reply))
        return checked(operation, Workspace(files).run(operation, params))

    async def _listed(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        depth = 1 if operation == "ls" else MAX_FOLDERS_DEEP + 1
        answer = await self._line.ask("list", encoded(params["path"]), str(depth))
        if operation == "ls" and not answer.startswith(b"folder"):
            return {"entries": [], "truncated": False}
        files = FetchedFiles(rows=fetched_files.rows(answer, params["path"]))
        return checked(operation, Workspace(files).run(operation, params))

    async def _fetched(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        words = [encoded(params["path"]), str(MAX_FILE)]
        if operation == "read":
            words += [str(min(params[name], MAX_LINES)) for name in ("offset", "limit")]
            words[2] = str(int(words[2]) + 1)
        files, total = fetched_files.fetched(await self._line.ask("fetch", *words), MAX_FILE)
        if operation == "edit":
            return await self._stored(operation, params, files)
        if operation == "read" and not files.fault:
            return _page(params, files, total)
        answer = Workspace(files).run(operation, params)
        if "content" in answer and files.info:
            answer.update(created=files.info.st_ctime, modified=files.info.st_mtime)
        return checked(operation, answer)

    async def _stored(
        self, operation: str, params: dict[str, Any], files: FetchedFiles
    ) -> dict[str, Any]:
        answer = Workspace(files).run(operation, params)
        if files.stored is None:
            return answer
        path, fresh = encoded(params["path"]), "1" if operation == "write" else "0"
        words = [path, fresh, str(len(files.stored))]
        reply = await self._line.ask(
            "store", *words, data=files.stored, twice=False, draft=params["path"]
        )
        files.refusal = fetched_files.fault(reply)
        return Workspace(files).run(operation, params) if files.refusal else answer


def _page(params: dict[str, Any], files: FetchedFiles, total: int) -> dict[str, Any]:
    if not files.info or not files.info.st_size:
        return {"text": EMPTY}
    try:
        check_lines(count_lines(files.data))
    except OSError as exc:
        text = f"Error: File '{params['path']}' cannot be read: {words(exc)}"
        return {"text": text, "code": code_of(exc)}
    return page(params["path"], lines_of(files.data), params["offset"], total)


def _fault_of_name(params: dict[str, Any]) -> ValueError | None:
    try:
        check_name(params["path"])
        check_name(params.get("target", "x"))
    except ValueError as exc:
        return exc
    return None


def _fault_of_path(path: str) -> Exception | None:
    """Return the kernel's error for a path that cannot be passed through a shell."""
    try:
        name = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as exc:
        return exc
    if b"\0" in name:
        return ValueError("the path contains a zero byte")
    if len(name) > MAX_PATH or any(len(part) > MAX_NAME for part in name.split(b"/")):
        return OSError(errno.ENAMETOOLONG, "the path is too long")
    return None


async def grep(
    line: RemoteShell,
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

    def __init__(self, line: RemoteShell, path: str, pattern: str, how: str) -> None:
        self._line, self._path, self._pattern, self._how = line, path, pattern, how

    async def candidates(self) -> tuple[list[str], bool]:
        """Return the files that contain the pattern; "" is the path itself."""
        words = [encoded(self._path), self._how, encoded(self._pattern)]
        limits = [str(MAX_FOLDERS_DEEP + 1), str(MAX_FILE_BYTES + 1)]
        answer = await self._line.ask("candidates", *words, *limits)
        if answer.startswith(b"-"):
            reason = answer[1:].decode("utf-8", "replace").strip().removeprefix("grep: ")
            raise ValueError(f"not a regular expression: {reason[:200]}")
        return fetched_files.candidates(answer)

    async def hits(self, files: list[str], room: int) -> AsyncIterator[Hits]:
        """Return the lines that match, file by file, up to `room` of each."""
        for some in _batches(files):
            base = [encoded(self._path), self._how, encoded(self._pattern), str(room)]
            if some == [""]:
                base[0], names = encoded(""), [encoded(self._path)]
            else:
                names = [encoded(name) for name in some]
            matched = fetched_files.lines(await self._line.ask("lines", *base, *names), len(some))
            for name, hits in zip(some, matched, strict=True):
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
