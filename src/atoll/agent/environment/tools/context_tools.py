"""peek, grep and list_dir on the host: over the context, the documents, what was spilled.

SECURITY: names come from a guest. A folder's files are reached by its descriptor alone, links
never lead out of it, and spilled files are known by the names that this session gave them.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import OrderedDict, deque
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.chains.prefetch import note
from atoll.agent.environment.tools import arguments
from atoll.concurrency import forks
from atoll.errors import ConfigError
from atoll.files.folder import OpenFolders
from atoll.guest.agent.explorer import ELSEWHERE
from atoll.sandbox.context import Context
from atoll.search.index import ContextIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from atoll.agent.environment.tools.taint import Sources
    from atoll.search.coverage import CoverageLog
    from atoll.search.grep import Hit
    from atoll.search.spans_shown import Shown

    Key = tuple[int, int, int, int]


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


MAX_PEEKED = 1_000_000
MAX_TOLD = 3
"""Calls of one cell whose lists were cut, as far as a model is told of them."""
LONGEST_PATTERN = 60
MAX_WORDS = 6
"""Words of a pattern that was not found whose lines are counted."""
LARGEST_COUNTED = 64 << 20
"""Characters of a context up to which they are: each count reads it once."""
_WORD, _ESCAPED = re.compile(r"\w{3,40}"), re.compile(r"\\.", re.DOTALL)


class CutLists:
    """Lists of hits of the turn that runs now which were cut: a model must be told of them."""

    def __init__(self) -> None:
        self._cut: deque[tuple[str, str]] = deque(maxlen=MAX_TOLD)
        """How a list itself says the number, and a line that does."""
        self._said: dict[str, bool] = {}
        """Remarks of this session, and whether a model was told of each."""

    def note(
        self, call: str, things: str, hits: Sequence[Any], total: int, *, counted: bool
    ) -> None:
        """Remember a call whose list has fewer things than it found."""
        if counted and len(hits) >= total:
            return
        number = f"{total:,}" if counted else f"at least {total:,}"
        notice = f"({call} found {number} {things}, and its list holds {len(hits):,} of them"
        self._cut.append((number, f"{notice}: .total is the number)" if counted else f"{notice})"))

    def say_once(self, remark: str) -> None:
        """Tell a model something on how a tool works here, the first time."""
        if len(self._said) < MAX_TOLD:
            self._said.setdefault(remark, False)

    def since(self, text: str) -> list[str]:
        """Return a line for each such call since the last time, and forget them; new remarks too.

        Calls are left out whose number of hits `text` is, or says.
        """
        lines: dict[str, None] = {}
        whole = text.strip()
        while self._cut:
            number, line = self._cut.popleft()
            if f"{number} found" not in text and whole != number.replace(",", ""):
                lines[line] = None
        for remark, was_said in self._said.items():
            if not was_said:
                self._said[remark] = True
                lines[f"({remark})"] = None
        return list(lines)


class ContextTools:
    """Tools that run in threads. What they give of the context is noted in the ledger."""

    def __init__(
        self,
        index: ContextIndex | None,
        documents: Documents,
        *,
        ledger: CoverageLog,
        shown: Shown,
        sources: Sources,
        cut: CutLists,
        max_results: int,
    ) -> None:
        self._index, self._documents, self._sources = index, documents, sources
        self._ledger, self._shown, self._most = ledger, shown, max_results
        self._cut = cut

    def peek(self, n: int, start: int = 0, path: str | None = None) -> dict[str, object]:
        """`n` characters from `start` on; a start below 0 counts from the end."""
        index = self._find(path)
        if index is None:
            return {ELSEWHERE: True}
        at = arguments.place(start, index.length)
        end = min(index.length, at + arguments.count(n, "n", MAX_PEEKED))
        text = index.text(at, end)
        self._note(path, (at, end), [(at, text)])
        return {"text": text}

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        ignore_case: bool = False,  # noqa: FBT001, FBT002
    ) -> dict[str, object]:
        """The lines that match, up to max_grep_results."""
        index = self._find(path)
        if index is None:
            return {ELSEWHERE: True, "most": self._most}
        wanted = arguments.text(pattern, "pattern")
        result = index.grep(wanted, most=self._most, ignore_case=bool(ignore_case))
        self._note(path, result.scanned, [(hit.at, hit.text) for hit in result.hits])
        call = f"grep({wanted[:LONGEST_PATTERN]!r})"
        self._cut.note(call, "lines", result.hits, result.total, counted=result.counted)
        hits = [_hit(hit, index.file_at(hit.start)) for hit in result.hits]
        words = {} if result.total else _word_counts(index, wanted)
        return {"hits": hits, "total": result.total, "counted": result.counted, "words": words}

    def list_dir(self, path: str = ".") -> dict[str, object]:
        """The documents in a folder; no names if the folder does not exist here."""
        folder = arguments.text(path, "path")
        return {"names": self._documents.names("" if folder == "." else folder)}

    def _note(
        self, path: str | None, scanned: tuple[int, int], pieces: list[tuple[int, str]]
    ) -> None:
        """Remember what was read: of the context where, of a document that it is untrusted."""

        def remember() -> None:
            if path is None:
                self._ledger.scan(*scanned)
                self._shown.note(pieces)
            else:
                self._sources.note(f"document {path}", [text for _, text in pieces])

        note(remember)

    def _find(self, path: str | None) -> ContextIndex | None:
        if path is not None:
            return self._documents.find(arguments.text(path, "path"))
        if self._index is None:
            raise ValueError("there is no context: give a path, as list_dir() shows them")
        return self._index


def _word_counts(index: ContextIndex, pattern: str) -> dict[str, int]:
    """Return how many lines have each word of a pattern that was not found; not those with none.

    A model takes a phrase of the question for one of the text: this says which word to search for.
    Of a list with commas, its parts are counted.
    """
    plain = _ESCAPED.sub(" ", pattern)
    parts = [part.strip() for part in plain.split(",") if part.strip()]
    words = dict.fromkeys(parts if len(parts) > 1 else _WORD.findall(plain))
    if len(words) <= 1 or index.length > LARGEST_COUNTED:
        return {}
    counts = {
        word: index.grep(word, most=1, literal=True).total for word in islice(words, MAX_WORDS)
    }
    return {repr(word) if " " in word else word: count for word, count in counts.items() if count}


def _hit(hit: Hit, file: tuple[str, int] | None) -> dict[str, object]:
    """Return a hit as data. Where it is from a file of a folder, with its path and line there."""
    data: dict[str, object] = {
        "line": hit.line,
        "start": hit.start,
        "end": hit.end,
        "text": hit.text,
    }
    if file is None:
        return data
    path, header = file
    return {"path": path, **data, "line": hit.line - header}
