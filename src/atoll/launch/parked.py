"""Keeps a few started processes waiting, of the kind asked for last: for backends without a pool.

Each host process has one set of them, shared by all its event loops: a process belongs to no event
loop until it is taken. When the host ends, its sockets close and the supervisor ends them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from atoll.concurrency import forks
from atoll.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable


class Process(Protocol):
    """A process that is starting, or waits for its first request."""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""

    def close(self) -> None:
        """End it."""


KindT = TypeVar("KindT")
ProcessT = TypeVar("ProcessT", bound=Process)


class ParkedProcesses(Generic[KindT, ProcessT]):
    """At most `most` processes that no one uses yet, all of one kind.

    Another kind takes their place when it is asked for twice in a row.
    """

    def __init__(self, start: Callable[[KindT], ProcessT], most: int) -> None:
        self._start, self.most = start, most
        self._lock, self._owner = forks.new_lock(), os.getpid()
        self._kind: KindT | None = None
        self._missed: KindT | None = None
        self.waiting: deque[ProcessT] = deque()

    @property
    def kind(self) -> KindT | None:
        """The kind of those that wait."""
        return self._kind

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self.waiting)

    def take(self, kind: KindT) -> ProcessT:
        """Return a waiting process of this kind, if it lives; else start one."""
        with self._lock:
            self._forget_parents()
            if kind != self._kind:
                self._miss(kind)
            elif process := self._next_alive():
                self._missed = None
                return process
        return self._start(kind)

    def refill(self) -> None:
        """Start as many as are missing; a failed start is tried again later."""
        with self._lock, contextlib.suppress(OSError, SandboxError):
            self._forget_parents()
            while self._kind is not None and len(self.waiting) < self.most:
                self.waiting.append(self._start(self._kind))
                atexit.unregister(self.close)  # only the last registration is to count
                atexit.register(self.close)

    def close(self) -> None:
        """End those that wait."""
        with self._lock:
            self._forget_parents()
            self._drop()

    def _miss(self, kind: KindT) -> None:
        if not self.waiting or kind == self._missed:
            self._drop()
            self._kind, self._missed = kind, None
        else:
            self._missed = kind

    def _next_alive(self) -> ProcessT | None:
        while self.waiting:
            process = self.waiting.popleft()
            if not process.ended:
                return process
            process.close()
        return None

    def _drop(self) -> None:
        while self.waiting:
            with contextlib.suppress(OSError):
                self.waiting.popleft().close()

    def _forget_parents(self) -> None:
        """Let go of what the parent has: a fork of the host has a supervisor of its own."""
        if self._owner != os.getpid():
            self._drop()
            self._kind, self._owner = None, os.getpid()
