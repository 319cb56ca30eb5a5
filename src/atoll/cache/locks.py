"""Locks on the entries of a store: shared while an entry is in use, exclusive to remove it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from typing import TYPE_CHECKING

from atoll.concurrency import forks

if TYPE_CHECKING:
    from collections.abc import Iterator

_counting = forks.new_lock()
_locks: weakref.WeakValueDictionary[str, Lock] = weakref.WeakValueDictionary()


class Lock:
    """The lock on an entry that all holds of this process share; the last one closes it."""

    def __init__(self, fd: int) -> None:
        self.fd, self._holds = fd, 0

    def add(self) -> bool:
        """Count one more hold; False if the last one was already closed."""
        with _counting:
            if self.fd < 0:
                return False
            self._holds += 1
            return True

    def drop(self) -> None:
        """Count one less."""
        with _counting:
            self._holds -= 1
            if self._holds == 0:
                os.close(self.fd)
                self.fd = -1


def share(path: str) -> Lock | None:
    """Return a counted hold on the lock file at `path`; None if its entry is being removed."""
    lock = _locks.get(path)
    if lock is None or not lock.add():
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # it is being removed; an event loop must not wait for that
            os.close(fd)
            return None
        lock = _locks[path] = Lock(fd)
        lock.add()
    return lock


@contextlib.contextmanager
def together(path: str) -> Iterator[None]:
    """Hold a lock file with others while the block runs; wait for one who holds it alone."""
    with opened(path) as fd:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def alone(path: str) -> Iterator[None]:
    """Hold a lock file exclusively while the block runs; wait for it."""
    with opened(path) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def alone_or_not(path: str) -> Iterator[bool]:
    """Hold a lock file exclusively while the block runs; yield False if another has it."""
    with opened(path) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a lock file while the block runs."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)
