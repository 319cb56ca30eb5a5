"""Searches a guest's folder on the host: files in order, hits too, and no more than asked for."""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING, Any

from atoll.files.blocks import SearchBuffer
from atoll.files.matchers import make_matcher
from atoll.files.tree import Tree
from atoll.guest.globs import chooser

if TYPE_CHECKING:
    from atoll.files.folder import OpenFolders
    from atoll.files.matchers import Matcher


class Searcher:
    """Carries out `grep` for a Workspace; another thread may set `stop`, and it ends soon."""

    def __init__(self, stop: Event | None = None) -> None:
        self._stop = stop or Event()
        self._prepared: Matcher | None = None
        self.met_large = False
        """Whether the last search met a file that is worth loading numpy for."""

    def prepare(self, pattern: str, *, regex: bool, ignore_case: bool) -> None:
        """Make what the next call uses; it may start a process, which the guest's user may not."""
        self._prepared = make_matcher(pattern, regex=regex, ignore_case=ignore_case)

    def __call__(
        self,
        place: OpenFolders,
        pattern: str,
        path: str,
        *,
        glob: str | None,
        regex: bool,
        ignore_case: bool,
        max_results: int,
    ) -> dict[str, Any]:
        """As guest/search does it."""
        matcher, self._prepared = self._prepared, None
        if matcher is None:
            matcher = make_matcher(pattern, regex=regex, ignore_case=ignore_case)
        chosen = chooser(glob)
        try:
            top = place.open(path)
        except (OSError, ValueError):
            return {"matches": [], "truncated": False}
        tree = Tree(top, os.path.basename(path), chosen)
        search = SearchBuffer(matcher, max_results + 1, self._stop)
        try:
            _search(tree, search)
        finally:
            os.close(top)
        self.met_large = search.met_large
        cut = search.full or tree.too_deep or search.headed or search.late
        return {"matches": search.hits[:max_results], "truncated": cut}


def _search(tree: Tree, search: SearchBuffer) -> None:
    files = iter(tree)
    try:
        for path, fd in files:
            try:
                with suppress(OSError):  # it is not for us to read after all
                    search.add(path, fd)
            finally:
                os.close(fd)
            if not search.wanted:
                return
        search.look()
    finally:
        files.close()
