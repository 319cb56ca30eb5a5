"""Searches a guest's folder on the host: files and hits in order, no more hits than asked for."""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING, Any

from atoll.files.tree import Tree
from atoll.guest.shared.globs import chooser
from atoll.search.blocks import SearchBuffer
from atoll.search.patterns import Pattern

if TYPE_CHECKING:
    from atoll.files.folder import OpenFolders


class Searcher:
    """Runs `grep` for a Workspace until it is done or another thread sets `stop`."""

    def __init__(self, stop: Event | None = None) -> None:
        self._stop = stop or Event()
        self._prepared: Pattern | None = None
        self.met_large = False
        """Whether the last search met a file for which importing numpy pays."""

    def prepare(self, pattern: str, *, regex: bool, ignore_case: bool) -> None:
        """Compile the pattern of the next call; that may start a process, as this user."""
        self._prepared = Pattern(pattern, regex=regex, ignore_case=ignore_case)

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
        """Search a folder as guest/shared/search does."""
        compiled, self._prepared = self._prepared, None
        if compiled is None:
            compiled = Pattern(pattern, regex=regex, ignore_case=ignore_case)
        chosen = chooser(glob)
        try:
            top = place.open(path)
        except (OSError, ValueError):
            return {"matches": [], "truncated": False}
        tree = Tree(top, os.path.basename(path), chosen)
        search = SearchBuffer(compiled, max_results + 1, self._stop)
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
                with suppress(OSError):  # this user may not read it after all
                    search.add(path, fd)
            finally:
                os.close(fd)
            if not search.wanted:
                return
        search.scan()
    finally:
        files.close()
