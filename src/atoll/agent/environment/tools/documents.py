"""Documents on the host: texts by name, the archive_* tools, and the searches by meaning.

SECURITY: names come from a guest. A folder's files are reached by its descriptor alone, links
never lead out of it, and spilled files are known by the names that this session gave them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.agent.archive import open_archive
from atoll.agent.environment.tools import arguments
from atoll.concurrency import forks
from atoll.errors import ConfigError
from atoll.files.folder import OpenFolders
from atoll.guest.agent.explorer import ELSEWHERE, REPEATED
from atoll.sandbox.context import Context
from atoll.search.index import ContextIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from atoll.agent.archive import Archive
    from atoll.agent.environment.tools.context_tools import CutLists
    from atoll.agent.retrieval import Hits, Retriever

    Key = tuple[int, int, int, int]
    Search = Callable[[str, int], list[dict[str, object]]]

ROOT = "/documents"
LARGEST = 1 << 28
KEPT, MAX_KEPT = 8, 1 << 30
"""Texts that stay open, and their bytes together; the last one does whatever its size."""


class Documents:
    """Opens a text by its name; the last few stay open, with their indexes."""

    def __init__(self, root: Path | None, spilled: Callable[[], Mapping[str, Path]]) -> None:
        self._fd = None if root is None else _folder(root)
        self._spilled = spilled
        self._open: OrderedDict[Key, Context] = OrderedDict()
        self._lock, self._folder_lock = forks.new_lock(), forks.new_lock()

    def find(self, name: str) -> ContextIndex | None:
        """Return the index of the text of that name; None if the host has no such text."""
        with self.opened(name) as fd:
            return None if fd is None else self._index(fd, name)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[int | None]:
        """Yield a descriptor of the file of that name; None if the host has no such file."""
        fd = self._descriptor(name)
        try:
            yield fd
        finally:
            if fd is not None:
                os.close(fd)

    def names(self, folder: str) -> list[str] | None:
        """Return the names in a folder, folders with a slash; None if the folder does not exist."""
        result = None
        with self._folder() as place, contextlib.suppress(OSError, ValueError):
            if place is not None:
                entries = place.entries(folder)
                result = [name + "/" * stat.S_ISDIR(info.st_mode) for name, info in entries]
        spilled = [name for name in self._spilled() if os.path.dirname(name) == folder.rstrip("/")]
        return (result or []) + [os.path.basename(name) for name in spilled] or result

    def close(self) -> None:
        """Let go of all that is open."""
        with self._lock:
            while self._open:
                self._forget_oldest()
        with self._folder_lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    @contextlib.contextmanager
    def _folder(self) -> Iterator[OpenFolders | None]:
        """The folder, which is not closed meanwhile: its number would be another file's then."""
        with self._folder_lock:
            yield None if self._fd is None else OpenFolders({ROOT: self._fd})

    def _descriptor(self, name: str) -> int | None:
        try:
            if path := self._spilled_path(name):
                return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with self._folder() as place:
                fd = None if place is None else place.open(name)
        except (OSError, ValueError):  # it may have gone meanwhile
            return None
        if fd is None:
            return None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            return None
        return fd

    def _spilled_path(self, name: str) -> Path | None:
        """Return the file of spilled output that has this short name, or this very path."""
        spilled = self._spilled()
        return spilled.get(name) or next((p for p in spilled.values() if str(p) == name), None)

    def _index(self, fd: int, name: str) -> ContextIndex:
        info = os.fstat(fd)
        if info.st_size > LARGEST:
            raise ValueError(f"{name} has {info.st_size:,} bytes; the most is {LARGEST:,}")
        key = (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)
        with self._lock:
            if key not in self._open:
                self._open[key] = _read_text(fd)
            self._open.move_to_end(key)
            while len(self._open) > KEPT or (self._bytes() > MAX_KEPT and len(self._open) > 1):
                self._forget_oldest()
            return ContextIndex.of(self._open[key])

    def _bytes(self) -> int:
        return sum(context.size for context in self._open.values())

    def _forget_oldest(self) -> None:
        self._open.popitem(last=False)  # freed with the last index that is in use


def _folder(root: Path) -> int:
    try:
        return os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise ConfigError(f"documents must be a folder: {root}: {exc.strerror}") from None


def _read_text(fd: int) -> Context:
    path = Path(f"/proc/self/fd/{fd}")
    try:
        return Context.from_file(path)
    except UnicodeDecodeError:
        return Context.from_text(path.read_bytes().decode("utf-8", "replace"))


MAX_MEMBERS = 1_000
"""Members that archive_open tells of."""
MAX_TEXT = 8 << 20
"""Characters of a member that cross to the guest."""
WAIT_SECONDS = 60.0
"""How long a call waits for those before it: of many whose cell has ended, most give up."""


@dataclass(slots=True)
class Archives:
    """Tools that run in threads, one after the other; one archive is open at a time."""

    documents: Documents
    max_results: int
    cut: CutLists
    _archive: Archive | None = None
    _lock: forks.Lock = field(default_factory=forks.new_lock)
    _closed: bool = False

    def archive_open(self, path: str, data: bytes | None = None) -> dict[str, object]:
        """Open a document's archive, or the bytes of one; the members' names and sizes."""
        name = arguments.text(path, "path")
        if data is not None and not isinstance(data, bytes):
            raise ValueError("an archive is bytes, or the path of a file")
        with self._turn():
            archive = self._open(name, data)
            if archive is None:
                return {ELSEWHERE: True, REPEATED: True}
            self._close()
            self._archive = archive
            members = archive.members
            listing = [
                {"name": member.name, "size": member.size} for member in members[:MAX_MEMBERS]
            ]
        self.cut.note("archive_open", "members", listing, len(members), counted=True)
        return {"members": listing, "total": len(members)}

    def archive_file(self, name: str) -> str:
        """The text of a member."""
        with self._turn():
            text = self._opened().text(arguments.text(name, "name"))
        if len(text) > MAX_TEXT:
            raise ValueError(
                f"{name} has {len(text):,} characters, and {MAX_TEXT:,} can be handed over: "
                "use archive_search"
            )
        return text

    def archive_search(self, query: str) -> dict[str, object]:
        """Lines with `query` in them."""
        with self._turn():
            match = self._opened().search(arguments.text(query, "query"), most=self.max_results)
        hits = [{"path": hit.member, "line": hit.line, "text": hit.text} for hit in match]
        self.cut.note("archive_search", "lines", hits, len(hits), counted=not match.truncated)
        return {"hits": hits, "total": len(hits), "counted": not match.truncated}

    def close(self) -> None:
        """Let go of the archive, also in the midst of a read; calls that wait find it closed."""
        self._closed = True
        if self._archive is not None:
            self._archive.close()
        with self._lock:  # a call that was opening one has ended
            if self._archive is not None:
                self._close()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=WAIT_SECONDS):
            raise ValueError("other archive calls are still running: make one after the other")
        try:
            if self._closed:
                raise ValueError("the environment is closed")
            yield
        finally:
            self._lock.release()

    def _open(self, name: str, data: bytes | None) -> Archive | None:
        if data is not None:
            return open_archive(data, name)
        with self.documents.opened(name) as fd:
            if fd is None:
                return None
            with os.fdopen(os.dup(fd), "rb") as file:
                return open_archive(file, name)

    def _opened(self) -> Archive:
        if self._archive is None:
            raise ValueError("no archive is open: call archive_open(path) first")
        return self._archive

    def _close(self) -> None:
        if self._archive is not None:
            self._archive.close()
            self._archive = None


MAX_FOUND = 100
INDEXED_CONTEXT = 4 << 20
"""Characters of a context whose sections are indexed; a longer one is searched for the words."""
MAX_UNITS = 100_000
CONTEXT = "context"
NO_MODEL = "search for words that the text may use; by meaning needs the extra `semantic`"
MAX_WORDS = 50
"""Words of a query that a passage is chosen by."""
SHOWN = 300
"""Characters of a section that a hit shows; its lines tell where the rest is."""


@dataclass(slots=True)
class SearchTools:
    """The indexes, made when they are first asked for, and refreshed when documents change."""

    documents: Path | None
    index: ContextIndex | None
    server: str | None
    remarks: CutLists
    _files: Retriever | None = None
    _texts: Retriever | None = None
    _late: Retriever | None = None
    _lock: forks.Lock = field(default_factory=forks.new_lock)

    def code_search(self, query: str, k: int = 10) -> list[dict[str, object]]:
        """The units of code that fit best."""
        return self._search(query, k, "code")

    def doc_search(self, query: str, k: int = 10) -> list[dict[str, object]]:
        """The sections that fit best."""
        return self._search(query, k, "doc")

    def colgrep(
        self, query: str, pattern: str | None = None, k: int = 10
    ) -> list[dict[str, object]]:
        """The units of code that fit best token by token; with a pattern, those that it matches."""
        from atoll.agent.retrieval.retriever import colgrep, open_index  # noqa: PLC0415 - few search

        wanted = arguments.text(query, "query")
        most = max(1, arguments.count(k, "k", MAX_FOUND))
        if self.documents is None:
            raise ValueError("there are no documents to search: use grep for the context")
        with self._lock:
            if self._late is None:
                self._late = open_index(self.documents, self.server)
            index = self._late
        sought = None if pattern is None else arguments.text(pattern, "pattern")
        return self._shown(colgrep(index, wanted, sought, most), query, "colgrep")

    def close(self) -> None:
        """Let go of the indexes."""
        with self._lock:
            for index in (self._files, self._texts, self._late):
                if index is not None:
                    index.close()
            self._files = self._texts = self._late = None

    def _search(self, query: str, k: int, kind: str) -> list[dict[str, object]]:
        wanted = arguments.text(query, "query")
        most = max(1, arguments.count(k, "k", MAX_FOUND))
        result = [search(wanted, most) for search in self._searches(kind)]
        if not result:
            raise ValueError("there is nothing to search: no documents, and no context to section")
        return _in_turn(result)[:most]

    def _searches(self, kind: str) -> list[Search]:
        """Return what answers: the documents' index, and for documents the context's."""
        with self._lock:
            searches: list[Search] = []
            if self.documents is not None:
                searches.append(partial(self._units, self._documents_index(), kind))
            if kind == "doc" and self.index is not None:
                if self.index.length > INDEXED_CONTEXT:
                    searches.append(partial(_passages, self.index))
                else:
                    searches.append(partial(self._units, self._context_index(self.index), kind))
        return searches

    def _units(self, retriever: Retriever, kind: str, query: str, most: int) -> list[Any]:
        return self._shown(retriever.search(query, k=most, kind=kind), query, f"{kind}_search")

    def _shown(self, hits: Hits, query: str, call: str) -> list[dict[str, object]]:
        """Return hits for a guest; say once if they were found by words alone."""
        if hits.mode_used == "fts":
            self.remarks.say_once(f"{call} compared words alone: {NO_MODEL}")
        return [_shown_unit(unit, query) for unit in hits]

    def _documents_index(self) -> Retriever:
        if self._files is None:
            from atoll.agent.retrieval import NextPlaid, Retriever, find_server  # noqa: PLC0415 - few search

            server = find_server() if self.server is None else NextPlaid(self.server)
            self._files = Retriever(self.documents or ".", server=server)
        return self._files

    def _context_index(self, index: ContextIndex) -> Retriever:
        if self._texts is None:
            from atoll.agent.retrieval import Bounds, Retriever  # noqa: PLC0415 - few search

            bounds = Bounds(file_bytes=4 * INDEXED_CONTEXT, units_per_file=MAX_UNITS)
            self._texts = Retriever({CONTEXT: index.text(0, index.length)}, bounds=bounds)
        return self._texts


def _passages(index: ContextIndex, query: str, most: int) -> list[dict[str, object]]:
    from atoll.agent.retrieval.context_search import search_context  # noqa: PLC0415 - few search

    return [
        {
            "path": CONTEXT,
            "line": index.line_of(hit.start),
            "start": hit.start,
            "end": hit.end,
            "text": passage(hit.text, query)[:SHOWN],
            "score": round(hit.score, 3),
        }
        for hit in search_context(index, query, most)
    ]


def _in_turn(result: list[Any]) -> list[Any]:
    """The best of each index first: their scores do not compare."""
    return [hit for rank in zip_longest(*result) for hit in rank if hit is not None]


def _shown_unit(unit: Any, query: str) -> dict[str, object]:
    """Return a hit; of one in the context, `context[start:end]` is all of it."""
    place = {"start": unit.start, "end": unit.end} if unit.path == CONTEXT else {}
    return {
        "path": unit.path,
        "line": unit.start_line,
        "end_line": unit.end_line,
        **place,
        "kind": unit.kind,
        "name": unit.name,
        "text": (unit.signature or passage(unit.text, query))[:SHOWN],
        "score": round(unit.score, 3),
    }


def passage(text: str, query: str) -> str:
    """A section from the line on that has most of the query's words, and the one before it."""
    words = list(dict.fromkeys(query.lower().split()))[:MAX_WORDS]
    lines = text.splitlines()
    best = max(range(len(lines)), key=lambda at: _shared(lines[at].lower(), words), default=0)
    return "\n".join(lines[max(0, best - 1) :])


def _shared(line: str, words: list[str]) -> int:
    return sum(word in line for word in words)
