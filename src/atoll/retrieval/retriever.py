"""Retriever: searches code and documents below a folder, or in texts, by a query in words.

refresh: walk ─ changed files ─▶ parser (a process) ─ units ─▶ SQLite FTS5
search:  words ─▶ 50 candidates ─▶ reranked by meaning, if there is a model ─▶ the best k
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

from atoll import forks
from atoll.errors import ConfigError, IndexDamagedError, RetrievalError
from atoll.extras import hint
from atoll.retrieval import encoder, reranking
from atoll.retrieval.opening import index_folder, open_store
from atoll.retrieval.plaid import PlaidEngine
from atoll.retrieval.refreshing import refresh
from atoll.retrieval.sources import FolderSource, TextSource
from atoll.retrieval.store import MEMORY, Store
from atoll.retrieval.types import CODE, DOC, Bounds, Found, Hits

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.retrieval.nextplaid import NextPlaid
    from atoll.retrieval.sources import Source
    from atoll.retrieval.types import Progress, Refreshed, Unit

    Ranked = list[tuple[Unit, float]]

MODES = ("auto", "fts", "fused", "maxsim", "nextplaid")
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
                mode = "fused" if encoder.is_installed() else "fts"
                warning = _joined(warning, f"{exc}; the embedded index answers")
                warnings.warn(warning, RuntimeWarning, stacklevel=3)
        wanted = k if mode == "fts" else max(k, reranking.CANDIDATES)
        candidates = self._store.search(query, kind, wanted)
        if rerank := _RERANKERS.get(mode):
            candidates, reached = rerank(self._store, query, candidates)
            warning = _joined(warning, _shortfall(reached, len(candidates)))
        return _hits(candidates, k, mode, warning)

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

    def _check_open(self) -> None:
        if self._closed:
            raise RetrievalError("the retriever is closed: make another")


_RERANKERS: dict[str, Callable[[Store, str, Ranked], tuple[Ranked, int]]] = {
    "fused": reranking.fused,
    "maxsim": reranking.maxsim,
}


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
    if mode in _RERANKERS and not encoder.is_installed():
        raise ConfigError(f"mode {mode!r} needs a model. {hint('semantic')}")
    if mode != "auto":
        return mode
    return "nextplaid" if server else "fused" if encoder.is_installed() else "fts"


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


def _shortfall(reached: int, of: int) -> str:
    if reached == of:
        return ""
    limit = f"{reranking.ENCODE_SECONDS:g} s"
    return f"{reached} of {of} candidates were compared by meaning in {limit}: ask again for more"


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
