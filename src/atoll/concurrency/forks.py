"""Locks that a forked child of the host process finds free.

A fork copies locks as they are, but not the threads that hold them: a child would wait for ever.
What a lock protects may be the parent's (a process, a socket): its class checks the pid itself.
"""

from __future__ import annotations

import os
import sys
from threading import Lock, RLock
from typing import Any
from weakref import WeakSet

__all__ = ["Lock", "new_lock", "new_rlock"]

_locks: WeakSet[Any] = WeakSet()


def new_lock() -> Lock:
    """Return a lock that is free in a forked child."""
    lock = Lock()
    _locks.add(lock)
    return lock


def new_rlock() -> RLock:
    """Return a reentrant lock that is free in a forked child."""
    lock = RLock()
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # noqa: SLF001 - as the standard library does with its own


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_free_all)
