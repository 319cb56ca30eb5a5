"""Reports changes in a folder that this process has a descriptor of, by inotify.

SECURITY: the folder may be a guest's. Names are only reported; the only things opened by name are
folders below the descriptor, without following links, at most MAX_FOLDERS of them, and in a
thread: a guest can make folders that take long to look through.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from atoll.files import inotify
from atoll.files.folder import open_beneath

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MAX_FOLDERS = 1_024
MAX_DEPTH = 64
MAX_WAITING = 10_000
MAX_LISTED = 100_000
"""Entries of folders that are looked at to find the folders below."""
_MODIFY, _ATTRIBUTES, _CLOSED, _FROM, _TO = 0x2, 0x4, 0x8, 0x40, 0x80
_CREATE, _DELETE = 0x100, 0x200
_FOLDER = 0x40000000
_ONLY_FOLDERS = 0x01000000
_WANTED = _MODIFY | _ATTRIBUTES | _CLOSED | _FROM | _TO | _CREATE | _DELETE | _ONLY_FOLDERS
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WORDS = {
    _CREATE: "created",
    _MODIFY: "written",
    _CLOSED: "closed",
    _DELETE: "deleted",
    _FROM: "moved_from",
    _TO: "moved_to",
    _ATTRIBUTES: "attributes",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One change: what happened to which path, relative to the watched folder."""

    path: str
    kind: str
    """created, written, closed, deleted, moved_from, moved_to, attributes, or lost (incomplete)."""
    is_dir: bool = False


class Watch:
    """Collects changes below a folder until it is closed."""

    def __init__(self, root: int, *, recursive: bool) -> None:
        """Take over the folder's descriptor; OSError if it cannot be watched."""
        self._root, self._recursive = root, recursive
        self._changes: asyncio.Queue[Change] = asyncio.Queue(MAX_WAITING)
        self._held: list[Change] = []
        """Changes that are published once the new folders among them are watched."""
        self._lost = self._closed = False
        self._new: deque[str] = deque()
        """Folders to look into: paths below the root, which end with a slash."""
        self._listed = 0
        self._scanning: asyncio.Future[None] | None = None
        self._context = contextvars.copy_context()
        try:
            self._lease = inotify.Lease(self.changed)
        except BaseException:
            os.close(root)
            raise

    @classmethod
    async def below(cls, root: int, path: str, *, recursive: bool = False) -> Self:
        """Watch the folder at `path` below the descriptor `root`; OSError if it cannot be.

        TooManyWatchesError if too many folders are watched for the same owner.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK
        made = cls(open_beneath(root, path or ".", flags), recursive=recursive)
        try:
            made._lease.add(made._root, _WANTED, "")
            if recursive:
                await asyncio.shield(made._look_into(""))
        except BaseException:
            made.close()
            raise
        return made

    async def changes(self, pause: float) -> AsyncIterator[list[Change]]:
        """Yield changes as they come, several at a time; an empty list after a pause."""
        while True:
            changes = []
            with contextlib.suppress(TimeoutError):
                changes = [await asyncio.wait_for(self._changes.get(), pause)]
            while not self._changes.empty():
                changes.append(self._changes.get_nowait())
            if self._lost:
                self._lost = False
                changes.append(Change("", "lost"))
            yield list(dict.fromkeys(changes))

    def close(self) -> None:
        """Stop watching."""
        if not self._closed:
            self._closed = True
            if self._scanning is None:  # else the thread uses the descriptor until it ends
                self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def changed(self, path: str, mask: int, name: str) -> None:
        """Take an event of the kernel, of the folder at a path."""
        if mask & inotify.OVERFLOW:
            self._lost = True
        kind = next((word for bit, word in _WORDS.items() if mask & bit), "")
        if not kind or not name or self._closed:
            return
        if self._recursive and mask & _FOLDER and mask & (_CREATE | _TO):
            self._look_into(f"{path}{name}/")
        if len(self._held) < MAX_WAITING:
            self._held.append(Change(path + name, kind, bool(mask & _FOLDER)))
        else:
            self._lost = True
        if self._scanning is None:
            self._publish()

    def _publish(self) -> None:
        """Hand out the changes that are held: who hears of a folder may count on its changes."""
        held, self._held = self._held, []
        for change in held:
            try:
                self._changes.put_nowait(change)
            except asyncio.QueueFull:
                self._lost = True

    def _look_into(self, path: str) -> asyncio.Future[None]:
        """Watch a folder and, a little later, those below it; return a future of that."""
        self._note(path)
        if self._scanning is None:
            self._listed = 0
            work = asyncio.to_thread(self._scan)
            self._scanning = self._context.run(asyncio.ensure_future, work)
            self._scanning.add_done_callback(self._scanned)
        return self._scanning

    def _scanned(self, _done: asyncio.Future[None]) -> None:
        self._scanning = None
        if self._closed:
            self._end()
        elif self._new:  # it was found as the thread ended
            self._look_into(self._new.popleft())
        else:
            self._publish()

    def _end(self) -> None:
        self._lease.end()
        os.close(self._root)

    def _note(self, path: str) -> None:
        full = len(self._new) + self._lease.folders > MAX_FOLDERS
        if full or path.count("/") > MAX_DEPTH:
            self._lost = True
        else:
            self._new.append(path)

    def _scan(self) -> None:
        """Watch the folders that were noted, and note those below them. Runs in a thread."""
        while self._new and not self._closed:
            path = self._new.popleft()
            try:
                fd = self._opened(path)
                try:
                    if path:
                        self._lease.add(fd, _WANTED, path)
                    self._list(path, fd)
                finally:
                    os.close(fd)
            except inotify.TooManyWatchesError:
                self._lost = True
            except OSError:  # it is gone already, or no folder any more
                continue

    def _list(self, path: str, folder: int) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                self._listed += 1
                if self._closed or self._listed > MAX_LISTED:
                    self._lost = True
                    return
                if entry.is_dir(follow_symlinks=False):
                    self._note(f"{path}{entry.name}/")

    def _opened(self, path: str) -> int:
        """Return a descriptor of a folder, opened step by step from the root."""
        here = os.dup(self._root)
        for part in path.split("/")[:-1]:
            try:
                inner = os.open(part, _OPEN, dir_fd=here)
            finally:
                os.close(here)
            here = inner
        return here
