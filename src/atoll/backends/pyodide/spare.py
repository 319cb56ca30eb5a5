"""One Deno process that waits, so that the next sandbox need not: of the kind asked for last.

It belongs to no event loop until it is taken, and ends with the supervisor, so with the host.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.backends.pyodide.lease import DenoLease
from atoll.channel import HostChannel
from atoll.errors import SandboxStartError
from atoll.jail.client import supervisor
from atoll.launch.guest_handle import GuestHandle, pipes

if TYPE_CHECKING:
    import socket

    from atoll.jail.spec import JailSpec


@dataclass(frozen=True, slots=True)
class Started:
    """A process on its way up, and what it will be spoken to by."""

    socket: socket.socket
    answers: int
    requests: int
    output: list[int]

    @property
    def ready(self) -> bool:
        """Whether it has said its first word."""
        return _polls(self.answers, select.POLLIN)

    def join(self, context_bytes: int, *, listens: bool) -> GuestHandle:
        """Belong to the running event loop; `listens`: while guest code runs."""
        channel = HostChannel(self.answers, self.requests)
        lease = DenoLease(self.socket, channel, context_bytes, listens=listens)
        return GuestHandle(lease, channel, self.output)

    def close(self) -> None:
        """End it unheard: the supervisor does that when the socket closes."""
        self.socket.close()
        for fd in (self.answers, self.requests, *self.output):
            os.close(fd)


def start(spec: JailSpec) -> Started:
    """Ask the supervisor for a Deno."""
    with pipes(4) as (requests, answers, output, errors):
        given = [requests[0], answers[1], errors[1], output[1]]
        sock = supervisor.ask(spec, given)
        for fd in given:
            os.close(fd)
    return Started(sock, answers[0], requests[1], [output[0], errors[0]])


class Spare:
    """At most one process of this host process that nobody uses yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._waiting: tuple[JailSpec, Started] | None = None
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

    def take(self, spec: JailSpec) -> Started:
        """The one that waits if it is of this kind, else a new one; then another is started."""
        with self._lock:
            self._forget_parents()
            found = self._matching(spec) or start(spec)
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
            self._waiting = spec, start(spec)
            atexit.unregister(self.close)
            atexit.register(self.close)

    def _matching(self, spec: JailSpec) -> Started | None:
        if self._waiting is None:
            return None
        kind, waiting = self._waiting
        if kind == spec and not _ended(waiting.socket):
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


def _ended(sock: socket.socket) -> bool:
    """Whether the supervisor has hung up, whatever it has said before."""
    return _polls(sock.fileno(), select.POLLRDHUP)


def _polls(fd: int, event: int) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(0))


spare = Spare()
