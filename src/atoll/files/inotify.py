"""Inotify instances: a few for the whole process, shared by all that watch folders in one loop.

The kernel gives a user 128 instances by default, so a watch must not take one for itself. An owner
(`shares.OWNER`) has an instance of its own while there are few, so that changes which another
owner makes without end neither fill its queue nor delay its events.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from collections import Counter
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from atoll.concurrency.forks import new_lock
from atoll.concurrency.shares import OWNER
from atoll.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_INSTANCES = 32
MAX_WATCHES = 64
"""Watches of one owner at a time."""
MAX_FOLDERS = 4_096
"""Folders that the watches of one owner have at a time."""
PAUSE_SECONDS = 0.02
"""How long an instance is not read after a full read: a flood must not keep the loop busy."""
_HEAD = struct.Struct("iIII")
_SIZE = 1 << 14
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
OVERFLOW, IGNORED = 0x4000, 0x8000
_libc = ctypes.CDLL(None, use_errno=True)


class TooManyWatchesError(BusyError):
    """One client watches too many folders at a time."""


class Inotify:
    """One instance, and who watches which folder by it."""

    def __init__(self) -> None:
        self._fd = _libc.inotify_init1(_FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "no more folders can be watched")
        self._guard = new_lock()
        self._watches: dict[int, dict[Lease, str]] = {}
        """Who watches a folder, and which path it has there, by the kernel's number."""
        self._loop = asyncio.get_running_loop()
        self._paused: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._fd, self._read)

    def add(self, folder: int, mask: int, path: str, lease: Lease) -> int:
        """Watch an open folder; return its number, the same for all that watch it. Thread-safe."""
        where = f"/proc/self/fd/{folder}".encode()
        with self._guard:
            number: int = _libc.inotify_add_watch(self._fd, where, mask)
            if number < 0:
                raise OSError(ctypes.get_errno(), "the folder cannot be watched")
            self._watches.setdefault(number, {})[lease] = path
        return number

    def remove(self, number: int, lease: Lease) -> None:
        """Watch a folder no more, if it is watched still."""
        with self._guard:
            known = self._watches.get(number, {})
            if known.pop(lease, None) is not None and not known:
                del self._watches[number]
                _libc.inotify_rm_watch(self._fd, number)

    def close(self) -> None:
        """Give the instance back to the kernel."""
        if self._paused is not None:
            self._paused.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _read(self) -> None:
        data, at = b"", 0
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._fd, _SIZE)
        if len(data) > _SIZE // 2:
            self._loop.remove_reader(self._fd)
            self._paused = self._loop.call_later(PAUSE_SECONDS, self._resume)
        while at < len(data):
            number, mask, _, length = _HEAD.unpack_from(data, at)
            name = data[at + _HEAD.size : at + _HEAD.size + length].rstrip(b"\0")
            at += _HEAD.size + length
            self._tell(number, mask, os.fsdecode(name))

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._fd, self._read)

    def _tell(self, number: int, mask: int, name: str) -> None:
        with self._guard:
            if mask & OVERFLOW:
                watched = {item: "" for known in self._watches.values() for item in known}
            elif mask & IGNORED:
                watched = self._watches.pop(number, {})
            else:
                watched = dict(self._watches.get(number, ()))
        for lease, path in watched.items():
            lease.tell(number, path, mask, name)


class Lease:
    """The right of one watch to an instance, and to folders within the share of its owner."""

    def __init__(self, tell: Callable[[str, int, str], None]) -> None:
        """TooManyWatchesError if the owner has too many; OSError if the kernel has no more.

        `tell` is called with a folder's path, the kernel's mask, and the name in the folder.
        """
        self._tell, self._owner = tell, OWNER.get()
        self._shared, self._numbers = _of_loop(), set[int]()
        self._place, self._inotify = self._shared.take(self._owner)

    @property
    def folders(self) -> int:
        """How many folders are watched."""
        return len(self._numbers)

    def add(self, folder: int, mask: int, path: str) -> None:
        """Watch an open folder too; TooManyWatchesError if the owner has too many. Thread-safe."""
        self._shared.take_folder(self._owner)
        try:
            number = self._inotify.add(folder, mask, path, self)
        except BaseException:
            self._shared.give_folders(self._owner, 1)
            raise
        if number in self._numbers:  # it has another path now
            self._shared.give_folders(self._owner, 1)
        self._numbers.add(number)

    def tell(self, number: int, path: str, mask: int, name: str) -> None:
        """Take an event."""
        if mask & IGNORED and number in self._numbers:  # the folder has been deleted
            self._numbers.discard(number)
            self._shared.give_folders(self._owner, 1)
        self._tell(path, mask, name)

    def end(self) -> None:
        """Give all back."""
        for number in self._numbers:
            self._inotify.remove(number, self)
        self._shared.give_folders(self._owner, len(self._numbers))
        self._shared.give_back(self._owner, self._place)


class _Instances:
    """The instances of one loop, and how much each owner has of them."""

    def __init__(self) -> None:
        self._open: dict[str, Inotify] = {}
        self._leases: Counter[str] = Counter()
        """Watches by instance."""
        self._watches: Counter[str] = Counter()
        """Watches by owner."""
        self._folders: Counter[str] = Counter()
        self._guard = new_lock()

    def take(self, owner: str) -> tuple[str, Inotify]:
        if owner and self._watches[owner] >= MAX_WATCHES:
            text = f"{MAX_WATCHES} folders are watched at one time: close a watch"
            raise TooManyWatchesError(text)
        own = owner in self._open or len(self._open) < MAX_INSTANCES
        place = owner if own else ""
        if place not in self._open:
            self._open[place] = Inotify()
        self._leases[place] += 1
        self._watches[owner] += 1
        return place, self._open[place]

    def take_folder(self, owner: str) -> None:
        with self._guard:
            if owner and self._folders[owner] >= MAX_FOLDERS:
                text = f"{MAX_FOLDERS:,} folders are watched at one time: close a watch"
                raise TooManyWatchesError(text)
            self._folders[owner] += 1

    def give_folders(self, owner: str, count: int) -> None:
        with self._guard:
            self._folders[owner] -= count
            self._folders += Counter()  # those that are zero go

    def give_back(self, owner: str, place: str) -> None:
        self._watches[owner] -= 1
        self._watches += Counter()
        self._leases[place] -= 1
        if not self._leases[place]:
            del self._leases[place]
            self._open.pop(place).close()


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Instances] = WeakKeyDictionary()


def _of_loop() -> _Instances:
    return _loops.setdefault(asyncio.get_running_loop(), _Instances())
