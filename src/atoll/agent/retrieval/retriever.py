"""Retriever: searches code and documents below a folder, or in texts, by a query in words.

refresh: walk ─ changed files ─▶ parser (a process) ─ units ─▶ SQLite FTS5
search:  by words 50, by meaning 50 ─▶ compared token by token (MaxSim) ─▶ the best k
         without a model: words, then words that begin or mean the same
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from atoll.agent.retrieval import encoder, reranking
from atoll.agent.retrieval.opening import index_folder, open_store
from atoll.agent.retrieval.plaid import PlaidEngine
from atoll.agent.retrieval.refreshing import refresh
from atoll.agent.retrieval.sources import FolderSource, TextSource
from atoll.agent.retrieval.store import MEMORY, Store
from atoll.agent.retrieval.types import CODE, DOC, Bounds, Found, Hits
from atoll.agent.retrieval.vectors import Vectors
from atoll.concurrency import forks
from atoll.errors import ConfigError, IndexDamagedError, RetrievalError
from atoll.extras import hint

if TYPE_CHECKING:
    from atoll.agent.retrieval.nextplaid import NextPlaid
    from atoll.agent.retrieval.sources import Source
    from atoll.agent.retrieval.types import Progress, Refreshed, Unit

    Ranked = list[tuple[Unit, float]]

MODES = ("auto", "fts", "fused", "maxsim", "nextplaid")
BY_MEANING = ("fused", "maxsim")
"""Modes that need the model of the extra `semantic`."""
LONGEST_QUERY, MOST_HITS, LONGEST_TEXT = 10_000, 100, 2_000
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
                mode = "maxsim" if encoder.is_installed() else "fts"
                warning = _joined(warning, f"{exc}; the embedded index answers")
                warnings.warn(warning, RuntimeWarning, stacklevel=3)
        if mode in BY_MEANING:
            ranked, note = reranking.ranked_by_meaning(
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
        """Replace a damaged index by a new one, or by one that another process has rebuilt."""
        with contextlib.suppress(RetrievalError):
            self._store.close()
        self._store = self._open(suspect=True)
        self._vectors = Vectors(self._store, by_token=self._mode != "fused")

    def _check_open(self) -> None:
        if self._closed:
            raise RetrievalError("the retriever is closed: make another")


def _hits(ranked: Ranked, k: int, mode: str, warning: str) -> Hits:
    return Hits((_found(*one) for one in ranked[:k]), mode_used=mode, warning=warning)


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
    if mode in BY_MEANING and not encoder.is_installed():
        raise ConfigError(f"mode {mode!r} needs a model. {hint('semantic')}")
    if mode != "auto":
        return mode
    return "nextplaid" if server else "maxsim" if encoder.is_installed() else "fts"


def _check_search(query: str, k: int, kind: str) -> None:
    if not isinstance(query, str) or len(query) > LONGEST_QUERY:
        raise ConfigError(f"a query is text of at most {LONGEST_QUERY:,} characters")
    if type(k) is not int or not 1 <= k <= MOST_HITS:
        raise ConfigError(f"k must be a whole number from 1 to {MOST_HITS}, not {k!r}")
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
