"""Workers forked off one zygote that has the component loaded; a few wait to be taken.

There is one nest for a process, whatever loops it runs: nothing here needs a loop. It ends with
the process, by the end of its sockets.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import select
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.backends.wasm.gauge import Gauge
from atoll.errors import SandboxError
from atoll.jail.client import warden
from atoll.jail.spec import HatchSpec
from atoll.launch.line import lay

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from atoll.jail.spec import Limits, NurserySpec
    from atoll.launch.line import Laid

PARKED = 2


@dataclass(frozen=True, slots=True)
class Egg:
    """A worker on its way up, or waiting."""

    laid: Laid
    gauge: Gauge

    def close(self) -> None:
        """Nobody wants it."""
        self.laid.close()
        self.gauge.close()


class Nest:
    """Eggs of one component."""

    def __init__(self, make_spec: Callable[[str], NurserySpec]) -> None:
        self._make_spec = make_spec
        self._lock = threading.Lock()
        self._owner = 0
        self._nursery: socket.socket | None = None
        self._name = ""
        self._limits: Limits | None = None
        self._parked: deque[Egg] = deque()
        atexit.register(self.close)

    def take(self, limits: Limits) -> Egg:
        """A worker with these limits: one that waits, or a new one."""
        with self._lock:
            self._ensure()
            if limits != self._limits:
                self._drop(whole=False)
                self._limits = limits
            return self._parked.popleft() if self._parked else self._lay(limits)

    def refill(self) -> None:
        """Have some wait, with the limits that were asked for last; if not, the next is told."""
        with self._lock, contextlib.suppress(OSError, SandboxError):
            if self._nursery is None or self._limits is None or self._owner != os.getpid():
                return
            while len(self._parked) < PARKED:
                self._parked.append(self._lay(self._limits))

    def forsake(self, *, whole: bool) -> None:
        """One that waited was dead: do without the others, and the zygote if it is the whole."""
        with self._lock:
            self._drop(whole=whole)

    def close(self) -> None:
        """End the zygote, and all that wait."""
        self.forsake(whole=True)

    def _ensure(self) -> None:
        forked = self._owner != os.getpid()  # what the parent has is not ours
        if self._nursery is not None and (forked or _hung_up(self._nursery)):
            self._drop(whole=True)
        if self._nursery is None:
            self._owner, self._name = os.getpid(), secrets.token_hex(8)
            self._nursery = warden.ask(self._make_spec(self._name), [])

    def _lay(self, limits: Limits) -> Egg:
        gauge = Gauge.create()
        try:
            return Egg(lay(HatchSpec(nursery=self._name, limits=limits), gauge.fd), gauge)
        except BaseException:
            gauge.close()
            raise

    def _drop(self, *, whole: bool) -> None:
        while self._parked:
            with contextlib.suppress(OSError):
                self._parked.popleft().close()
        if whole and self._nursery is not None:
            self._nursery.close()
            self._nursery = None


def _hung_up(sock: socket.socket) -> bool:
    """Whether nobody is at the other end, whatever is still to be read."""
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(0))
