"""Keeps a few worker processes warm, forked off one zygote that has the component loaded."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.backends.wasm.counters import Counters
from atoll.concurrency import forks
from atoll.jail.supervisor import packets
from atoll.jail.supervisor.client import supervisor
from atoll.jail.supervisor.spec import ForkSpec
from atoll.launch.guest_handle import hung_up, request_guest
from atoll.launch.parked import ParkedProcesses

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from atoll.jail.supervisor.spec import Limits, Spec, ZygoteHostSpec
    from atoll.launch.guest_handle import StartingGuest

PARKED = 2


@dataclass(frozen=True, slots=True)
class WarmWorker:
    """A worker that is starting, or waiting for a request."""

    starting: StartingGuest
    counters: Counters

    @classmethod
    def start(cls, spec: Spec) -> WarmWorker:
        """Request a worker."""
        counters = Counters.create()
        try:
            return cls(request_guest(spec, counters.fd), counters)
        except BaseException:
            counters.close()
            raise

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.starting.ended

    def close(self) -> None:
        """End the worker and free its counters."""
        self.starting.close()
        self.counters.close()


class WarmWorkers:
    """Workers of one component, with the limits of the last request."""

    def __init__(self, make_spec: Callable[[str], ZygoteHostSpec]) -> None:
        self._make_spec = make_spec
        self._lock, self._owner = forks.new_lock(), os.getpid()
        self._zygote_host: socket.socket | None = None
        self._retired: list[socket.socket] = []
        """Zygote hosts that fork no more; each ends with its last worker."""
        self._name = ""
        self._parked = ParkedProcesses(self._request, PARKED)

    def take(self, limits: Limits) -> WarmWorker:
        """Return a worker with these limits: a waiting one, or a new one."""
        self._ensure()
        return self._parked.take(limits)

    def refill(self) -> None:
        """Start missing workers; the next take() raises a failure."""
        self._parked.refill()

    def discard(self, *, whole: bool) -> None:
        """Drop all waiting workers after one was found dead; with `whole`, the zygote too."""
        self._parked.close()
        with self._lock:
            self._forget_parents()
            if whole:
                self._retire()

    def _ensure(self) -> None:
        with self._lock:
            self._forget_parents()
            if self._zygote_host is not None and hung_up(self._zygote_host):
                self._parked.close()
                self._retire()
            if self._zygote_host is None:
                self._name = secrets.token_hex(8)
                self._zygote_host = supervisor.ask(self._make_spec(self._name), [])

    def _forget_parents(self) -> None:
        """Close a fork's copies of the sockets without a word: the parent still uses them."""
        if self._owner == os.getpid():
            return
        if self._zygote_host is not None:
            self._zygote_host.close()
        for sock in self._retired:
            sock.close()
        self._zygote_host, self._retired = None, []
        self._owner = os.getpid()

    def _request(self, limits: Limits) -> WarmWorker:
        return WarmWorker.start(ForkSpec(zygote_host=self._name, limits=limits))

    def _retire(self) -> None:
        """Let the zygote end with its last worker."""
        if self._zygote_host is not None:
            self._retired.append(self._zygote_host)
            with contextlib.suppress(OSError):
                packets.send(self._zygote_host, "retire")
            self._zygote_host = None
        for lease in [lease for lease in self._retired if hung_up(lease)]:
            self._retired.remove(lease)
            lease.close()
