"""Searches a guest's folder on the host: files and hits in order, no more hits than asked for.

SECURITY: each entry is opened by name from the descriptor of its parent, and no link is followed,
so entries that are moved or swapped meanwhile cannot lead out.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING, Any

from atoll.guest.shared.globs import chooser
from atoll.guest.shared.local_files import MAX_FOLDERS_DEEP
from atoll.search.blocks import SearchBuffer
from atoll.search.patterns import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from atoll.files.folder import OpenFolders

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
_OUR_FAULT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


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


class Tree:
    """The files below the descriptor `top`, or `top` itself; the caller closes each descriptor."""

    def __init__(self, top: int, name: str, chosen: Callable[[str], bool]) -> None:
        """The caller closes `top`; `name` is its path if it is a file."""
        self._top, self._name, self._chosen = top, name, chosen
        self.too_deep = False
        """Whether a folder was skipped because it is nested too deep."""

    def __iter__(self) -> Generator[tuple[str, int]]:
        """Yield paths and descriptors; the reader has to check that it is a regular file."""
        if stat.S_ISDIR(os.fstat(self._top).st_mode):
            yield from self._below(self._top, "", MAX_FOLDERS_DEEP)
        elif self._chosen(self._name):
            yield self._name, os.dup(self._top)

    def _below(self, folder: int, prefix: str, deeper: int) -> Iterator[tuple[str, int]]:
        for name, is_folder in _entries(folder):
            path = prefix + name
            if not is_folder:
                fd = _opened(name, _FILE, folder) if self._chosen(path) else -1
                if fd >= 0:
                    yield path, fd
            elif not deeper:
                self.too_deep = True
            else:
                yield from self._inside(_opened(name, _FOLDER, folder), path, deeper - 1)

    def _inside(self, folder: int, path: str, deeper: int) -> Iterator[tuple[str, int]]:
        if folder < 0:
            return
        try:
            yield from self._below(folder, f"{path}/", deeper)
        finally:
            os.close(folder)


def _entries(folder: int) -> list[tuple[str, bool]]:
    """Return names in order, and which are folders, by scandir without a stat of each."""
    try:
        with os.scandir(folder) as listing:
            kinds = [(item.name, item.is_dir(follow_symlinks=False), item) for item in listing]
    except OSError as exc:
        _raise_if_ours(exc)
        return []
    wanted = [(name, is_dir) for name, is_dir, entry in kinds if is_dir or _is_file(entry)]
    return sorted(wanted)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False  # it was deleted meanwhile


def _opened(name: str, flags: int, folder: int) -> int:
    """Return a descriptor, or -1 if the entry was deleted, is not readable, or is now a link."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as exc:
        _raise_if_ours(exc)
        return -1


def _raise_if_ours(exc: OSError) -> None:
    """Raise errors of the host (no descriptors, no memory): they do not mean a missing file."""
    if exc.errno in _OUR_FAULT:
        raise exc
