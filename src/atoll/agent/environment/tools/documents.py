"""Texts that a model may look into by name: files of one host folder, and spilled output.

SECURITY: names come from a guest. A folder's files are reached by its descriptor alone, links
never lead out of it, and spilled files are known by the names that this session gave them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.concurrency import forks
from atoll.errors import ConfigError
from atoll.files.folder import OpenFolders
from atoll.sandbox.context import Context
from atoll.search.index import ContextIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Key = tuple[int, int, int, int]

ROOT = "/documents"
LARGEST = 1 << 28
KEPT, MOST_KEPT = 8, 1 << 30
"""Texts that stay open, and their bytes together; the last one does whatever its size."""


class Documents:
    """Opens a text by its name; the last few stay open, with their indexes."""

    def __init__(self, root: Path | None, spilled: Callable[[], Mapping[str, Path]]) -> None:
        self._fd = None if root is None else _folder(root)
        self._spilled = spilled
        self._open: OrderedDict[Key, Context] = OrderedDict()
        self._lock, self._folder_lock = forks.new_lock(), forks.new_lock()

    def find(self, name: str) -> ContextIndex | None:
        """The text of that name; None if there is none here."""
        with self.opened(name) as fd:
            return None if fd is None else self._index(fd, name)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[int | None]:
        """A descriptor of the file of that name; None if there is none here."""
        fd = self._descriptor(name)
        try:
            yield fd
        finally:
            if fd is not None:
                os.close(fd)

    def names(self, folder: str) -> list[str] | None:
        """What is in a folder, folders with a slash; None if there is no such folder here."""
        found = None
        with self._folder() as place, contextlib.suppress(OSError, ValueError):
            if place is not None:
                entries = place.entries(folder)
                found = [name + "/" * stat.S_ISDIR(info.st_mode) for name, info in entries]
        spilled = [name for name in self._spilled() if os.path.dirname(name) == folder.rstrip("/")]
        return (found or []) + [os.path.basename(name) for name in spilled] or found

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
                self._open[key] = _read(fd)
            self._open.move_to_end(key)
            while len(self._open) > KEPT or (self._bytes() > MOST_KEPT and len(self._open) > 1):
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


def _read(fd: int) -> Context:
    path = Path(f"/proc/self/fd/{fd}")
    try:
        return Context.from_file(path)
    except UnicodeDecodeError:
        return Context.from_text(path.read_bytes().decode("utf-8", "replace"))
