"""One Deno process that waits, so that the next sandbox need not: of the kind asked for last.

It belongs to no event loop until it is taken, and ends with the supervisor, so with the host.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from typing import TYPE_CHECKING

from atoll.errors import SandboxStartError
from atoll.launch.guest_handle import request_guest

if TYPE_CHECKING:
    from atoll.jail.spec import JailSpec
    from atoll.launch.guest_handle import StartingGuest


class Spare:
    """At most one process of this host process that nobody uses yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._waiting: tuple[JailSpec, StartingGuest] | None = None
        self._missed: JailSpec | None = None

    @property
    def ready(self) -> bool:
        """Whether one waits that has come up."""
        with self._lock:
            return self._waiting is not None and self._waiting[1].ready

    @property
    def count(self) -> int:
        """How many wait."""
        return int(self._waiting is not None)

    def take(self, spec: JailSpec) -> StartingGuest:
        """The one that waits if it is of this kind, else a new one; then another is started."""
        with self._lock:
            self._forget_parents()
            found = self._matching(spec) or request_guest(spec)
            if self._waiting is None:
                self._start_next(spec)
        return found

    def close(self) -> None:
        """End the one that waits."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
            if waiting is not None and self._owner == os.getpid():
                waiting[1].close()

    def _start_next(self, spec: JailSpec) -> None:
        """It is for later: a host that has no room for it now shall have the one asked for."""
        with contextlib.suppress(OSError, SandboxStartError):
            self._waiting = spec, request_guest(spec)
            atexit.unregister(self.close)
            atexit.register(self.close)

    def _matching(self, spec: JailSpec) -> StartingGuest | None:
        if self._waiting is None:
            return None
        kind, waiting = self._waiting
        if kind == spec and not waiting.ended:
            self._waiting = self._missed = None
            return waiting
        if spec in (kind, self._missed):  # it has died, or another kind is wanted now
            waiting.close()
            self._waiting = None
        self._missed = spec
        return None

    def _forget_parents(self) -> None:
        """A fork of the host has a supervisor of its own, and none of these."""
        if self._owner != os.getpid():
            if self._waiting is not None:
                self._waiting[1].close()
            self._waiting, self._owner = None, os.getpid()


spare = Spare()
