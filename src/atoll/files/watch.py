"""Reports changes in a folder that this process has a descriptor of, by inotify.

SECURITY: the folder may be a guest's. Names are only reported; the only things opened by name are
folders below the descriptor, without following links, and at most MOST_FOLDERS of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from atoll.files.openat2 import open_beneath

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MOST_FOLDERS = 1_024
MOST_WAITING = 10_000
_HEAD = struct.Struct("iIII")
_SIZE = 1 << 16
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_MODIFY, _ATTRIBUTES, _CLOSED, _FROM, _TO = 0x2, 0x4, 0x8, 0x40, 0x80
_CREATE, _DELETE, _SELF = 0x100, 0x200, 0x400
_OVERFLOW, _IGNORED, _FOLDER = 0x4000, 0x8000, 0x40000000
_ONLY_FOLDERS, _NO_LINKS = 0x01000000, 0x02000000
_WANTED = _MODIFY | _ATTRIBUTES | _CLOSED | _FROM | _TO | _CREATE | _DELETE
_WORDS = {
    _CREATE: "created", _MODIFY: "written", _CLOSED: "closed", _DELETE: "deleted",
    _FROM: "moved_from", _TO: "moved_to", _ATTRIBUTES: "attributes",
}  # fmt: skip
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Change:
    """One change: what happened to which path, relative to the watched folder."""

    path: str
    kind: str
    """created, written, closed, deleted, moved_from, moved_to, attributes, or lost (incomplete)."""
    is_dir: bool = False


class Watch:
    """Collects changes below a folder until it is closed."""

    def __init__(self, folder: int, *, recursive: bool = False) -> None:
        """Take over the folder's descriptor; OSError if it cannot be watched."""
        self._root, self._recursive = folder, recursive
        self._folders: dict[int, str] = {}
        self._changes: asyncio.Queue[Change] = asyncio.Queue(MOST_WAITING)
        self._lost = False
        self._fd = _libc.inotify_init1(_FLAGS)
        if self._fd < 0:
            os.close(folder)
            raise OSError(ctypes.get_errno(), "no more folders can be watched")
        try:
            self._add("", folder)
        except BaseException:
            self._close()
            raise
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    @classmethod
    def below(cls, root: int, path: str, *, recursive: bool = False) -> Self:
        """Watch the folder at `path` below the descriptor `root`."""
        fd = open_beneath(root, path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK)
        return cls(fd, recursive=recursive)

    async def changes(self, pause: float) -> AsyncIterator[list[Change]]:
        """Yield changes as they come, several at a time; an empty list after a pause."""
        while True:
            try:
                found = [await asyncio.wait_for(self._changes.get(), pause)]
            except TimeoutError:
                found = []
            while not self._changes.empty():
                found.append(self._changes.get_nowait())
            if self._lost:
                self._lost = False
                found.append(Change("", "lost"))
            yield list(dict.fromkeys(found))

    def close(self) -> None:
        """Stop watching."""
        asyncio.get_running_loop().remove_reader(self._fd)
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _close(self) -> None:
        os.close(self._fd)
        os.close(self._root)

    def _add(self, path: str, folder: int) -> None:
        """Watch a folder, and those below it if `recursive`."""
        where = f"/proc/self/fd/{folder}".encode()
        number = _libc.inotify_add_watch(self._fd, where, _WANTED | _ONLY_FOLDERS)
        if number < 0:
            raise OSError(ctypes.get_errno(), "the folder cannot be watched")
        self._folders[number] = path
        if not self._recursive:
            return
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    self._enter(path, entry.name, folder)

    def _enter(self, path: str, name: str, folder: int) -> None:
        if len(self._folders) >= MOST_FOLDERS:
            self._lost = True
            return
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with contextlib.suppress(OSError):
            fd = os.open(name, flags, dir_fd=folder)
            try:
                self._add(f"{path}{name}/", fd)
            finally:
                os.close(fd)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._fd, _SIZE)
            at = 0
            while at < len(data):
                number, mask, _, length = _HEAD.unpack_from(data, at)
                name = data[at + _HEAD.size : at + _HEAD.size + length].rstrip(b"\0")
                at += _HEAD.size + length
                self._take(number, mask, os.fsdecode(name))

    def _take(self, number: int, mask: int, name: str) -> None:
        if mask & _OVERFLOW:
            self._lost = True
        if mask & _IGNORED:
            self._folders.pop(number, None)
        path = self._folders.get(number)
        kind = next((word for bit, word in _WORDS.items() if mask & bit), "")
        if path is None or not kind or not name:
            return
        try:
            self._changes.put_nowait(Change(path + name, kind, bool(mask & _FOLDER)))
        except asyncio.QueueFull:
            self._lost = True
        if self._recursive and mask & _FOLDER and mask & (_CREATE | _TO):
            self._follow(path, name)

    def _follow(self, path: str, name: str) -> None:
        """Watch a new folder, opened step by step from the root."""
        with contextlib.suppress(OSError):
            here = os.dup(self._root)
            for part in path.split("/")[:-1]:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                try:
                    inner = os.open(part, flags, dir_fd=here)
                finally:
                    os.close(here)
                here = inner
            try:
                self._enter(path, name, here)
            finally:
                os.close(here)
