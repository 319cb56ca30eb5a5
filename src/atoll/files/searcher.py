"""Searches a guest's folder on the host: files in order, some threads, hits in the same order.

Threads take the next files in turn. What is found in files that come before theirs is
known to be of use, so nobody keeps more hits than were asked for.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from atoll.files.blocks import Desk
from atoll.files.matchers import make_matcher
from atoll.files.tree import Tree
from atoll.guest.globs import chooser

if TYPE_CHECKING:
    from collections.abc import Generator

    from atoll.files.blocks import Hit
    from atoll.files.folder import FolderPlace
    from atoll.files.matchers import Matcher

MOST_THREADS = 4
BATCH = 16
"""Files that a thread takes at once: as many descriptors are open."""
ALONE = 4
"""Batches after which it is worth starting threads."""


class Searcher:
    """Carries out `grep` for a Workspace; another thread may set `stop`, and it ends soon."""

    def __init__(self, stop: Event | None = None) -> None:
        self._stop = stop or Event()

    def __call__(
        self,
        place: FolderPlace,
        pattern: str,
        path: str,
        *,
        glob: str | None,
        regex: bool,
        ignore_case: bool,
        max_results: int,
    ) -> dict[str, Any]:
        """As guest/search does it."""
        matcher = make_matcher(pattern, regex=regex, ignore_case=ignore_case)
        chosen = chooser(glob)
        try:
            top = place.open(path)
        except (OSError, ValueError):
            return {"matches": [], "truncated": False}
        tree = Tree(top, os.path.basename(path), chosen)
        threads = _threads() if regex else 1
        run = _Run(iter(tree), matcher, max_results + 1, self._stop, threads)
        try:
            hits = run.all_hits()
        finally:
            os.close(top)
        cut = len(hits) > max_results or tree.too_deep or run.headed
        return {"matches": hits[:max_results], "truncated": cut}


class _Run:
    """One search. What threads share is behind the lock."""

    def __init__(
        self,
        files: Generator[tuple[str, int]],
        matcher: Matcher,
        room: int,
        stop: Event,
        threads: int,
    ) -> None:
        self._threads = threads
        self._files, self._matcher, self._room, self._stop = files, matcher, room, stop
        self._lock = Lock()
        self._batches = 0
        self._hits: dict[int, list[Hit]] = {}
        self._last = sys.maxsize
        """The first batch that has hits enough for all: those behind it are of no use."""
        self.headed = False

    def all_hits(self) -> list[Hit]:
        """In the order of files, and of lines in each."""
        try:
            if not self._work(ALONE):
                self._work_together()
        finally:
            self._files.close()
        return [hit for number in sorted(self._hits) for hit in self._hits[number]]

    def _work_together(self) -> None:
        helpers = self._threads - 1
        with ThreadPoolExecutor(helpers or 1, "atoll-search") as pool:
            others = [pool.submit(self._work) for _ in range(helpers)]
            self._work()
        for other in others:
            other.result()

    def _work(self, most: int = sys.maxsize) -> bool:
        """Search up to so many batches; whether there are no more."""
        desk = Desk(self._matcher, lambda: False)
        try:
            for _ in range(most):
                number, room, files = self._next()
                if not files:
                    return True
                desk.hits, desk.room = [], room
                desk.wanted = partial(self._wanted, number)
                _search(desk, files)
                self._done(number, desk)
        except BaseException:
            self._last = -1  # the others need not go on
            raise
        return False

    def _next(self) -> tuple[int, int, deque[tuple[str, int]]]:
        """Number of a batch, how many of its hits are of use, and its files."""
        files: deque[tuple[str, int]] = deque()
        with self._lock:
            self._batches += 1
            room = self._room - sum(map(len, self._hits.values()))
            if room > 0 and self._wanted(self._batches):
                try:
                    files.extend(islice(self._files, BATCH))
                except BaseException:
                    _close(files)
                    raise
            return self._batches, room, files

    def _done(self, number: int, desk: Desk) -> None:
        with self._lock:
            self.headed |= desk.headed
            if desk.hits:
                self._hits[number] = desk.hits
            if len(desk.hits) >= self._room:
                self._last = min(self._last, number)

    def _wanted(self, number: int) -> bool:
        return number <= self._last and not self._stop.is_set()


def _search(desk: Desk, files: deque[tuple[str, int]]) -> None:
    try:
        while files and desk.wanted():
            path, fd = files[0]
            with suppress(OSError):  # it is not for us to read after all
                desk.add(path, fd)
            os.close(files.popleft()[1])
        desk.look()
    finally:
        _close(files)


def _close(files: deque[tuple[str, int]]) -> None:
    while files:
        os.close(files.popleft()[1])


def _threads() -> int:
    """For expressions: of the rest, most is Python's own work, which threads would wait for."""
    return min(MOST_THREADS, len(os.sched_getaffinity(0)))
