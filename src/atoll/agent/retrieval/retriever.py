"""Retriever: searches code and documents below a folder, or in texts, by a query in words.

refresh: walk ─ changed files ─▶ parser (a process) ─ units ─▶ SQLite FTS5
search:  by words 50, by meaning 50 ─▶ compared token by token (MaxSim) ─▶ the best k
         without a model: words, then words that begin or mean the same
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from atoll.agent.retrieval import nextplaid, vectors
from atoll.agent.retrieval.nextplaid import NextPlaid, find_server
from atoll.agent.retrieval.parsing import Parser, private_folder
from atoll.agent.retrieval.sources import FolderSource, TextSource
from atoll.agent.retrieval.store import MEMORY, Record, Store
from atoll.agent.retrieval.types import (
    CODE,
    DOC,
    GRAMMARS,
    Bounds,
    Found,
    Hits,
    Refreshed,
    corpus_of,
    has_grammars,
    suffix_of,
)
from atoll.agent.retrieval.vectors import PlaidEngine, Vectors
from atoll.concurrency import forks
from atoll.config import cache_folder
from atoll.errors import ConfigError, IndexDamagedError, RetrievalError
from atoll.extras import hint
from atoll.search.patterns import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.agent.retrieval.sources import Entry, Source
    from atoll.agent.retrieval.types import Progress, Unit

    Ranked = list[tuple[Unit, float]]


_NAME, _LOCK = "index.db", "lock"
_UNUSED_SECONDS = 30 * 24 * 3600


def index_folder(root: str | os.PathLike[str]) -> Path:
    """Return the default folder of an index, and delete old indices beside it."""
    everything = private_folder(cache_folder() / "retrieval")
    key = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]
    _forget_unused(everything)
    return everything / key


def open_store(folder: Path, max_bytes: int, *, suspect: bool = False) -> Store:
    """Open the index in a folder; with `suspect`, check all of it for damage first."""
    with _locked(private_folder(folder)):
        try:
            return _opened(folder, max_bytes, suspect=suspect)
        except IndexDamagedError:
            for ending in ("", "-wal", "-shm"):
                (folder / (_NAME + ending)).unlink(missing_ok=True)
            return _opened(folder, max_bytes, suspect=False)


def _opened(folder: Path, max_bytes: int, *, suspect: bool) -> Store:
    store = Store(folder / _NAME, max_bytes)
    try:
        if suspect:
            store.check()
    except BaseException:
        store.close()
        raise
    return store


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder while the index is checked; the lock file's time says when it was last used."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(lock)
        yield
    finally:
        os.close(lock)


def _forget_unused(everything: Path) -> None:
    for lock in everything.glob(f"*/{_LOCK}"):
        with contextlib.suppress(OSError):
            if time.time() - lock.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(lock.parent)


_BATCH_UNITS = 1_000
_HEAD = 8_192
_BINARY = b""
"""The hash of a file that is not text: it has no units, and is not read again."""


def refresh(
    store: Store, source: Source, bounds: Bounds, progress: Progress | None = None
) -> Refreshed:
    """Index the files that changed; an interrupted refresh keeps what it has written."""
    job = _Job(store, source, bounds)
    wanted = job.survey()
    with Parser(bounds) as parser:
        for done, entry in enumerate(wanted):
            if progress:
                progress(done, len(wanted))
            if not job.take(entry, parser):
                break
        job.flush()
        job.broken = parser.failures
    if progress:
        progress(len(wanted), len(wanted))
    return job.outcome()


@dataclass(slots=True)
class _Job:
    store: Store
    source: Source
    bounds: Bounds
    records: dict[str, Record] = field(default_factory=dict)
    pending: list[tuple[Record, str, list[Unit]]] = field(default_factory=list)
    touched: list[Record] = field(default_factory=list)
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    skipped: int = 0
    units: int = 0
    broken: int = 0
    too_many: int = 0

    def survey(self) -> list[Entry]:
        """Remove deleted files from the index; return those that may have changed."""
        self.records, present = self.store.records(), set()
        wanted = []
        with contextlib.closing(self.source.entries()) as entries:
            for number, entry in enumerate(entries):
                if number >= self.bounds.files:
                    self.too_many += 1  # a lower bound: the source may be endless
                    break
                if entry.size > self.bounds.file_bytes:
                    self.skipped += 1
                    continue
                present.add(entry.path)
                wanted += [] if self._is_known(entry) else [entry]
        gone = self.records.keys() - present
        if gone:
            self.store.remove(sorted(gone))
        self.removed, self.units = len(gone), self.store.count()
        return wanted

    def _is_known(self, entry: Entry) -> bool:
        record = self.records.get(entry.path)
        if record is None or not entry.stamp or record.stamp != _stamp(entry):
            return False
        self.unchanged += 1
        self.skipped += record.hash == _BINARY
        return True

    def take(self, entry: Entry, parser: Parser) -> bool:
        """Index one file; return False if the index is full."""
        data = self.source.read(entry.path, self.bounds.file_bytes)
        if data is None:
            self.skipped += 1
            return True
        is_text = b"\0" not in data[:_HEAD]
        digest = hashlib.sha256(data).digest() if is_text else _BINARY
        record = Record(path=entry.path, stamp=_stamp(entry), hash=digest)
        self.skipped += not is_text
        known = self.records.get(entry.path)
        if known and known.hash == digest and _parser_of(known.stamp) == _parser_of(record.stamp):
            self.unchanged += 1
            self.touched.append(record)
            return True
        units = parser.units(entry.path, data.decode("utf-8", "replace")) if is_text else []
        if self.units + len(units) > self.bounds.units:
            self.too_many += 1
            return False
        self._put(record, units)
        return True

    def _put(self, record: Record, units: list[Unit]) -> None:
        self.changed += 1
        self.units += len(units)
        self.pending.append((record, corpus_of(record.path), units))
        if sum(len(units) for _, _, units in self.pending) >= _BATCH_UNITS:
            self.flush()

    def flush(self) -> None:
        """Write the pending changes to the index."""
        if self.pending:
            self.store.put(self.pending)
            self.pending = []
        if self.touched:
            self.store.restamp(self.touched)
            self.touched = []
        self.units = self.store.count()

    def outcome(self) -> Refreshed:
        """Return the counts of this refresh."""
        return Refreshed(
            changed=self.changed,
            removed=self.removed,
            unchanged=self.unchanged,
            units=self.units,
            skipped=self.skipped + self.too_many,
            note=self._note(),
        )

    def _note(self) -> str:
        notes = []
        if self.too_many:
            limits = f"{self.bounds.files:,} files and {self.bounds.units:,} units"
            notes.append(f"not all is indexed: at most {limits} (Bounds)")
        if self.broken:
            notes.append(f"{self.broken} files broke the parser and were cut into lines")
        if not has_grammars() and any(suffix_of(path) in GRAMMARS for path in self.records):
            notes.append(f"functions of other languages need grammars. {hint('retrieval')}")
        return "; ".join(notes)


def _stamp(entry: Entry) -> str:
    """Return the stamp with the parser's name: new grammars make a file be parsed again."""
    parser = "grammars" if suffix_of(entry.path) in GRAMMARS and has_grammars() else "plain"
    return f"{parser} {entry.stamp}"


def _parser_of(stamp: str) -> str:
    return stamp.partition(" ")[0]


MODES = ("auto", "fts", "fused", "maxsim", "nextplaid")
BY_MEANING = ("fused", "maxsim")
"""Modes that need the model of the extra `semantic`."""
LONGEST_QUERY, MAX_HITS, LONGEST_TEXT = 10_000, 100, 2_000
FRESH_SECONDS = 5.0


class Retriever:
    """An index of a folder or of texts; thread-safe, and a context manager."""

    def __init__(
        self,
        root: str | os.PathLike[str] | Mapping[str, str],
        *,
        mode: str = "auto",
        cache: str | os.PathLike[str] | None = None,
        server: NextPlaid | None = None,
        bounds: Bounds | None = None,
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        """`root` is a folder, or texts by name; `cache` is the index's folder, or ":memory:".

        A search refreshes the index first if the last refresh is `fresh_seconds` ago.
        """
        self._mode = _checked_mode(mode, server)
        self._bounds, self._fresh_seconds = bounds or Bounds(), fresh_seconds
        self._refreshed_at, self._refreshing = float("-inf"), forks.new_lock()
        self._folder = _folder_of_index(root, cache)
        self._source: Source = TextSource(root) if isinstance(root, Mapping) else FolderSource(root)
        self._engine = PlaidEngine(server, _name_of(root)) if server else None
        self._closed = False
        try:
            self._store = self._open()
            self._vectors = Vectors(self._store, by_token=self._mode != "fused")
        except BaseException:
            self._source.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def refresh(self, progress: Progress | None = None) -> Refreshed:
        """Bring the index up to date; RetrievalError if it cannot be written."""
        with self._refreshing:
            self._check_open()
            try:
                done = refresh(self._store, self._source, self._bounds, progress)
            except IndexDamagedError:
                self._rebuild()
                done = refresh(self._store, self._source, self._bounds, progress)
            self._refreshed_at = time.monotonic()
            return done

    def search(self, query: str, k: int = 10, kind: str = CODE) -> Hits:
        """Return the best k units; if only the search by words works, a warning says why."""
        _check_search(query, k, kind)
        self._check_open()
        warning = self._refresh_if_old()
        try:
            return self._answer(query, k, kind, warning)
        except IndexDamagedError:
            with self._refreshing:
                self._rebuild()
            self.refresh()
            return self._answer(query, k, kind, warning)

    def encode(self, seconds: float, kind: str = CODE, progress: Progress | None = None) -> bool:
        """Encode units that cannot be found by meaning yet; return whether all can be now.

        A search does so too, for a few seconds; `progress` is called with units done and in all.
        """
        if self._mode not in BY_MEANING:
            return False
        self._refresh_if_old()
        done, total = self._vectors.encode_missing(kind, time.monotonic() + seconds, progress)
        return done == total

    def close(self) -> None:
        """Close index and folder; the index on disk stays for the next time."""
        with self._refreshing:
            if not self._closed:
                self._closed = True
                self._store.close()
                self._source.close()

    def _answer(self, query: str, k: int, kind: str, warning: str) -> Hits:
        mode = self._mode
        if mode == "nextplaid":
            try:
                return _hits(self._ask_server(query, k, kind), k, mode, warning)
            except IndexDamagedError:
                raise
            except RetrievalError as exc:
                mode = "maxsim" if vectors.is_installed() else "fts"
                warning = _joined(warning, f"{exc}; the embedded index answers")
                warnings.warn(warning, RuntimeWarning, stacklevel=3)
        if mode in BY_MEANING:
            ranked, note = nextplaid.ranked_by_meaning(
                self._store, self._vectors, query, kind, k=k, mode=mode
            )
            return _hits(ranked, k, mode, _joined(warning, note))
        return _hits(self._store.search(query, kind, k, related=True), k, mode, warning)

    def _ask_server(self, query: str, k: int, kind: str) -> Ranked:
        assert self._engine
        with self._refreshing:
            self._engine.sync(self._store)
        ranked = self._engine.search(self._store, query, kind, k)
        if not ranked:  # late interaction ranks all that it has: it has nothing of this folder yet
            raise RetrievalError("NextPLAID found nothing: it may still be encoding what it got")
        return ranked

    def _refresh_if_old(self) -> str:
        if time.monotonic() - self._refreshed_at < self._fresh_seconds:
            return ""
        try:
            self.refresh()
        except RetrievalError as exc:
            return f"the index is not up to date: {exc}"
        return ""

    def _open(self, *, suspect: bool = False) -> Store:
        if self._folder is None:
            return Store(None, self._bounds.index_bytes)
        return open_store(self._folder, self._bounds.index_bytes, suspect=suspect)

    def _rebuild(self) -> None:
        """Replace a damaged index by a new one, or by another process's new one."""
        with contextlib.suppress(RetrievalError):
            self._store.close()
        self._store = self._open(suspect=True)
        self._vectors = Vectors(self._store, by_token=self._mode != "fused")

    def _check_open(self) -> None:
        if self._closed:
            raise RetrievalError("the retriever is closed: make another")


def _hits(ranked: Ranked, k: int, mode: str, warning: str) -> Hits:
    return Hits((_found(*hit) for hit in ranked[:k]), mode_used=mode, warning=warning)


def _found(unit: Unit, score: float) -> Found:
    return Found(
        path=unit.path,
        name=unit.name,
        kind=unit.kind,
        signature=unit.signature,
        start_line=unit.start_line,
        end_line=unit.end_line,
        start=unit.start,
        end=unit.end,
        score=score,
        text=unit.body[:LONGEST_TEXT],
    )


def _checked_mode(mode: str, server: NextPlaid | None) -> str:
    if mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r}: use one of {', '.join(MODES)}")
    if mode == "nextplaid" and server is None:
        raise ConfigError("mode 'nextplaid' needs a server: give server=NextPlaid(url)")
    if mode in BY_MEANING and not vectors.is_installed():
        raise ConfigError(f"mode {mode!r} needs a model. {hint('semantic')}")
    if mode != "auto":
        return mode
    return "nextplaid" if server else "maxsim" if vectors.is_installed() else "fts"


def _check_search(query: str, k: int, kind: str) -> None:
    if not isinstance(query, str) or len(query) > LONGEST_QUERY:
        raise ConfigError(f"a query is text of at most {LONGEST_QUERY:,} characters")
    if type(k) is not int or not 1 <= k <= MAX_HITS:
        raise ConfigError(f"k must be a whole number from 1 to {MAX_HITS}, not {k!r}")
    if kind not in (CODE, DOC):
        raise ConfigError(f"kind must be {CODE!r} or {DOC!r}, not {kind!r}")


def _folder_of_index(
    root: str | os.PathLike[str] | Mapping[str, str], cache: str | os.PathLike[str] | None
) -> Path | None:
    if isinstance(root, Mapping) or cache == MEMORY:
        return None
    return Path(cache) if cache is not None else index_folder(root)


def _name_of(root: str | os.PathLike[str] | Mapping[str, str]) -> str:
    what = repr(sorted(root)) if isinstance(root, Mapping) else os.path.realpath(root)
    return "atoll-" + hashlib.sha256(what.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


WORDS_ONLY = "found by words alone: start NextPLAID on port 8088, or install the extra `semantic`"


def open_index(root: str | os.PathLike[str], server: str | None = None) -> Retriever:
    """Return the index of a folder, which compares token by token if a server or model exists."""
    result = find_server() if server is None else NextPlaid(server)
    return Retriever(root, server=result)


def colgrep(index: Retriever, query: str, pattern: str | None = None, k: int = 10) -> Hits:
    """Return the best k units; with a pattern, those of the best MAX_HITS that match it."""
    if pattern is None:
        return _told(index.search(query, k=k, kind=CODE), k)
    # SECURITY: RE2, or `re` in a child process with a deadline: the pattern may be a guest's.
    compiled = Pattern(pattern, regex=True, ignore_case=False)
    hits = index.search(query, k=MAX_HITS, kind=CODE)
    fit = [hit for hit in hits if _matches(compiled, hit.text)]
    return _told(Hits(fit, mode_used=hits.mode_used, warning=hits.warning), k)


def _matches(pattern: Pattern, text: str) -> bool:
    data = bytearray(f"{text}\n".encode("utf-8", "surrogatepass"))
    return pattern.within(data, len(data))(0) >= 0


def _told(hits: Hits, k: int) -> Hits:
    warning = hits.warning or (
        f"{WORDS_ONLY}. {hint('semantic')}" if hits.mode_used == "fts" else ""
    )
    return Hits(hits[:k], mode_used=hits.mode_used, warning=warning)
