"""Files below folders that this process has descriptors of; no guest code takes part."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.files.base import Files
from atoll.files.blocks import load_numpy
from atoll.files.folder import OpenFolders
from atoll.files.searcher import Searcher
from atoll.guest.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Folders = dict[str, int]
    """Descriptors by the names that they have for the guest; the first is the working folder."""

AT_ONCE = 8
"""Operations on one sandbox at a time: each holds descriptors, and a thread while it runs."""
CHANGING = frozenset({"write", "edit", "upload", "delete", "move", "mkdir"})

PATTERN = ("pattern", "regex", "ignore_case")
"""The parameters of `grep` that say what to look for."""


class FolderFiles(Files):
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
        folders = await self._folders(False)
        place = OpenFolders(folders, self._max_file_bytes)

        def work() -> OpenFile:
            try:
                with place.as_owner(path):
                    fd = place.open(path)
            finally:
                close_all(folders)
            return OpenFile.of(fd)

        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, work))


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
                else OSError(errno.EINVAL, "it is not a file")
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
