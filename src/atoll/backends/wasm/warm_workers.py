"""Keeps a few worker processes warm, forked off one zygote that has the component loaded.

Each host process has one pool of workers, shared by all its event loops: nothing here needs a
loop. When the process ends, its sockets close and the supervisor ends the workers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.backends.wasm.counters import Counters
from atoll.errors import SandboxError
from atoll.jail import packets
from atoll.jail.client import supervisor
from atoll.jail.spec import ForkSpec
from atoll.launch.guest_handle import hung_up, request_guest

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from atoll.jail.spec import Limits, ZygoteHostSpec
    from atoll.launch.guest_handle import StartingGuest

PARKED = 2


@dataclass(frozen=True, slots=True)
class WarmWorker:
    """A worker that is starting, or waiting for a request."""

    starting: StartingGuest
    counters: Counters

    def close(self) -> None:
        """End the worker and free its counters."""
        self.starting.close()
        self.counters.close()


class WarmWorkers:
    """Workers of one component."""

    def __init__(self, make_spec: Callable[[str], ZygoteHostSpec]) -> None:
        self._make_spec = make_spec
        self._lock = threading.Lock()
        self._owner = 0
        self._zygote_host: socket.socket | None = None
        self._retired: list[socket.socket] = []
        """Zygote hosts that fork no more; each ends with its last worker."""
        self._name = ""
        self._limits: Limits | None = None
        self._parked: deque[WarmWorker] = deque()
        atexit.register(self.close)

    def take(self, limits: Limits) -> WarmWorker:
        """Return a worker with these limits: a waiting one, or a new one."""
        with self._lock:
            self._ensure()
            if limits != self._limits:
                self._drop(whole=False)
                self._limits = limits
            return self._parked.popleft() if self._parked else self._request(limits)

    def refill(self) -> None:
        """Start workers with the limits of the last request; the next take() raises a failure."""
        with self._lock, contextlib.suppress(OSError, SandboxError):
            if self._zygote_host is None or self._limits is None or self._owner != os.getpid():
                return
            while len(self._parked) < PARKED:
                self._parked.append(self._request(self._limits))

    def forsake(self, *, whole: bool) -> None:
        """Drop all waiting workers after one was found dead; with `whole` the zygote too."""
        with self._lock:
            self._drop(whole=whole)

    def close(self) -> None:
        """End the zygote and the waiting workers."""
        self.forsake(whole=True)
        while self._retired:
            self._retired.pop().close()

    def _ensure(self) -> None:
        forked = self._owner != os.getpid()  # what the parent has is not ours
        if self._zygote_host is not None and (forked or hung_up(self._zygote_host)):
            self._drop(whole=True)
        if self._zygote_host is None:
            self._owner, self._name = os.getpid(), secrets.token_hex(8)
            self._zygote_host = supervisor.ask(self._make_spec(self._name), [])

    def _request(self, limits: Limits) -> WarmWorker:
        counters = Counters.create()
        try:
            return WarmWorker(
                request_guest(ForkSpec(zygote_host=self._name, limits=limits), counters.fd),
                counters,
            )
        except BaseException:
            counters.close()
            raise

    def _drop(self, *, whole: bool) -> None:
        while self._parked:
            with contextlib.suppress(OSError):
                self._parked.popleft().close()
        if whole and self._zygote_host is not None:
            self._retired.append(self._zygote_host)
            with contextlib.suppress(OSError):
                packets.send(self._zygote_host, "retire")
            self._zygote_host = None
        for one in [one for one in self._retired if hung_up(one)]:
            self._retired.remove(one)
            one.close()
