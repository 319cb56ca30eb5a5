"""Files below folders that this process has descriptors of; no guest code takes part.

A FIFO may have no reader, or a guest may have put something else in its place.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import stat
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.errors import BusyError
from atoll.files.base import CHANGING
from atoll.files.folder import OpenFolders, open_beneath
from atoll.files.live import MAX_ENTRIES, Entry, LiveFiles
from atoll.files.searcher import Searcher
from atoll.files.watch import Watch
from atoll.guest.shared.local_files import locate
from atoll.guest.shared.workspace import Workspace
from atoll.search.blocks import load_numpy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    T = TypeVar("T")
    Folders = dict[str, int]
    """Descriptors by the names that they have for the guest; the first is the working folder."""

SEND_SECONDS = 10.0
_PAUSE_SECONDS = 0.005
AT_ONCE = 8
"""Operations on one sandbox at a time: each holds descriptors, and a thread while it runs."""
PATTERN = ("pattern", "regex", "ignore_case")
"""The parameters of `grep` that say what to look for."""


class FolderFiles(LiveFiles):
    """The files below descriptors that are opened anew for each operation: folders may change."""

    def __init__(
        self, folders: Callable[[bool], Awaitable[Folders]], max_file_bytes: int | None = None
    ) -> None:
        """`folders` returns descriptors, which are closed here; its argument: whether to write."""
        self._folders, self._max_file_bytes = folders, max_file_bytes
        self._room = asyncio.Semaphore(AT_ONCE)

    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        await self._room.acquire()
        try:
            folders = await self._folders(operation in CHANGING)
        except BaseException:
            self._room.release()
            raise
        return await self._work(folders, operation, params)

    async def _work(
        self, folders: Folders, operation: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        place = OpenFolders(folders, self._max_file_bytes)
        stop = threading.Event()

        def work() -> dict[str, Any]:
            try:
                if stop.is_set():  # the caller was cancelled before the work began
                    return {}
                searcher = Searcher(stop)
                if operation == "grep":
                    searcher.prepare(**{name: params[name] for name in PATTERN})
                with place.as_owner(params["path"]):
                    answer = Workspace(place, searcher).run(operation, params)
                if searcher.met_large and "numpy" not in sys.modules:
                    threading.Thread(target=load_numpy, daemon=True).start()
                return answer
            finally:
                close_all(folders)

        # Shielded: a cancelled caller returns, but the thread uses the descriptors until it ends.
        done = asyncio.get_running_loop().run_in_executor(None, work)
        done.add_done_callback(lambda _: self._room.release())
        try:
            return await asyncio.shield(done)
        finally:
            stop.set()

    async def open_file(self, path: str) -> OpenFile:
        """Open a file to read parts of it; OSError says why it cannot be read."""
        return OpenFile.of(await self._in_place(path, lambda place: place.open(path)))

    async def inspect(self, path: str, depth: int = 0) -> list[Entry]:
        """Describe a path, or the contents of a folder, `depth` levels down; links stay links."""

        def look(place: OpenFolders) -> list[Entry]:
            return _below(place, path, depth) if depth else [_entry(place, path, place.stat(path))]

        return await self._in_place(path, look)

    async def watch(self, path: str, *, recursive: bool = False) -> Watch:
        """Begin to collect the changes of a folder; OSError if it cannot be watched."""
        folders = await self._folders(False)
        try:
            root, inner = locate(path, tuple(folders))
            return await Watch.below(folders[root], inner, recursive=recursive)
        finally:
            close_all(folders)

    async def send(self, path: str, data: bytes) -> bool:
        """Write to a FIFO that the guest reads; return False if it is missing."""
        folders = await self._folders(False)
        try:
            root, inner = locate(path, tuple(folders))
            return await _send(folders[root], inner, data)
        finally:
            close_all(folders)

    async def _in_place(self, path: str, work: Callable[[OpenFolders], T]) -> T:
        """Return what `work` finds in the folders, in a thread."""
        folders = await self._folders(False)
        place = OpenFolders(folders, self._max_file_bytes)

        def do() -> T:
            try:
                with place.as_owner(path):
                    return work(place)
            finally:
                close_all(folders)

        # Shielded: a cancelled caller returns, but the thread uses the descriptors until it ends.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, do))


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A regular file that is open for reading, until `close`."""

    fd: int
    size: int
    tag: str
    """A text that changes whenever the file is changed or replaced."""

    @classmethod
    def of(cls, fd: int) -> OpenFile:
        """Take over a descriptor; close it and raise OSError if it is not a regular file's."""
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            os.close(fd)
            folder = stat.S_ISDIR(info.st_mode)
            raise (
                IsADirectoryError(errno.EISDIR, "it is a folder")
                if folder
                else OSError(errno.EINVAL, "it is not a regular file")
            )
        return cls(fd, info.st_size, f"{info.st_ino:x}-{info.st_size:x}-{info.st_mtime_ns:x}")

    async def read(self, start: int, length: int) -> bytes:
        """Return bytes from `start` on; fewer if the file has become shorter."""
        return await asyncio.to_thread(os.pread, self.fd, length, start)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


def close_all(folders: Folders) -> None:
    """Close every descriptor."""
    for fd in folders.values():
        os.close(fd)


def _below(place: OpenFolders, path: str, depth: int) -> list[Entry]:
    rows: list[Entry] = []
    for name, status in sorted(place.entries(path)):
        if len(rows) >= MAX_ENTRIES:
            break
        inner = posixpath.join(path, name)
        rows.append(_entry(place, inner, status))
        if depth > 1 and stat.S_ISDIR(status.st_mode):
            rows += _below(place, inner, depth - 1)
    return rows[:MAX_ENTRIES]


def _entry(place: OpenFolders, path: str, status: os.stat_result) -> Entry:
    link = place.follow(path) if stat.S_ISLNK(status.st_mode) else ("", 0)
    return Entry(path, status.st_mode, status.st_size, status.st_mtime, *link)


async def _send(folder: int, path: str, data: bytes) -> bool:
    """Write all bytes to the FIFO at `path`; return False if it is missing or not read.

    BusyError if its reader takes nothing for SEND_SECONDS.
    """
    fd = _open(folder, path)
    if fd is None:
        return False
    try:
        await asyncio.wait_for(_write(fd, data), SEND_SECONDS)
    except (TimeoutError, OSError):
        raise BusyError("the guest takes no requests now: try again later") from None
    finally:
        os.close(fd)
    return True


def _open(folder: int, path: str) -> int | None:
    try:
        fd = open_beneath(folder, path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return fd


async def _write(fd: int, data: bytes) -> None:
    """Write all of it, as the reader takes it."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            await asyncio.sleep(_PAUSE_SECONDS)
