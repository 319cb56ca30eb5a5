"""One sandbox under the warden: its lease, its limits, its control group, its end.

What runs in it, and how it came to be, is for the subclasses: see jailed, hatched, brood.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from atoll.jail import meter

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from atoll.jail.cgroup import Cgroup
    from atoll.jail.spec import Limits

GROUP_PATIENCE_SECONDS = 5.0
MEMORY_SLACK = 32 << 20


class Ward(ABC):
    """What the warden knows of one sandbox."""

    def __init__(
        self,
        limits: Limits | None,
        lease: socket.socket,
        group: Cgroup | None,
        selector: selectors.BaseSelector,
    ) -> None:
        self.limits, self.lease, self.cgroup, self._selector = limits, lease, group, selector
        self._killed = self._reaped = self._over_memory = False
        self._wait_status: int | None = None
        self._failure: str | None = None
        self._deadline: float | None = None
        self._final: dict[str, Any] = {}

    @abstractmethod
    def roots(self) -> list[int]:
        """The processes that all others descend from; empty before there are any."""

    @abstractmethod
    def _signal_guest(self) -> None:
        """SIGINT for the guest."""

    @abstractmethod
    def _signal_all(self) -> None:
        """SIGKILL for everything."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of descriptors and files."""

    def kill(self) -> None:
        """End every process of the sandbox."""
        self._killed = True
        if not self._reaped:  # else the numbers may be somebody else's by now
            self._signal_all()

    def needs_attention(self) -> bool:
        """Whether time alone can change something: memory to measure, a group to remove."""
        return self._reaped or self._measured()

    def check_memory(self) -> None:
        """Without a control group, end a sandbox whose processes together are over the limit."""
        roots = self.roots()
        if not self._measured() or self._reaped or not roots:
            return
        assert self.limits is not None
        assert self.limits.memory is not None
        limit = self.limits.memory + self.limits.context + MEMORY_SLACK
        if meter.memory_bytes(roots, limit) > limit:
            self._over_memory = True
            self.kill()

    def is_over(self) -> bool:
        """Whether all is gone: processes, and the control group unless it will not go."""
        if not self._reaped:
            return False
        if self._deadline is None:
            self._deadline = time.monotonic() + GROUP_PATIENCE_SECONDS
            self._final = self._report()
        gone = self.cgroup is None or self.cgroup.remove()
        return gone or time.monotonic() > self._deadline

    def close(self) -> None:
        """Say how it ended, and let go of everything."""
        self._unwatch(self.lease.fileno())
        self._release()
        self.tell("failed" if self._failure else "ended", **self._final)
        self.lease.close()

    def fail(self, reason: str) -> None:
        """Note why it could not be started: the first reason counts."""
        self._failure = self._failure or reason

    def tell(self, event: str, **fields: Any) -> None:
        """Send the host an event."""
        with contextlib.suppress(OSError):
            self.lease.send(json.dumps({"event": event, **fields}).encode())

    def _started(self) -> None:
        self.tell("started", cgroup=self.cgroup.version if self.cgroup else None)

    def _on_command(self) -> None:
        """Do what the host asks on the lease; its end means kill."""
        try:
            command = self.lease.recv(64)
        except OSError:
            command = b""
        if command == b"interrupt":
            self._signal_guest()
        elif command == b"usage":
            self.tell("usage", cpu_seconds=self._cpu_seconds())
        else:
            self.kill()
        if not command:
            self._unwatch(self.lease.fileno())

    def _report(self) -> dict[str, Any]:
        if self._failure:
            return {"reason": self._failure}
        status = self._wait_status or 0
        # The kernel may have ended a grandchild long ago: it counts if it ended the guest.
        ended = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        group_oom = ended and self.cgroup is not None and self.cgroup.oom_kills() > 0
        return {
            "exit": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "out_of_memory": group_oom or self._over_memory,
            "peak_memory": self.cgroup.peak_memory() if self.cgroup else None,
        }

    def _measured(self) -> bool:
        return self.cgroup is None and self.limits is not None and self.limits.memory is not None

    def _cpu_seconds(self) -> float:
        counted = self.cgroup.cpu_seconds() if self.cgroup else None
        return meter.cpu_seconds(self.roots()) if counted is None else counted

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def _unwatch(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)


class StatusLines:
    """The lines that a jail in the making writes to its status pipe."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        self._buffer = b""

    def read(self) -> list[tuple[str, str]] | None:
        """The next lines, each as a word and the rest; None at the end."""
        data = os.read(self.read_fd, 65536)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        parts = (line.decode(errors="replace").partition(" ") for line in lines)
        found = [(word, rest) for word, _, rest in parts]
        return found if data or found else None

    def handed_over(self) -> None:
        """The write end is another process's now."""
        os.close(self.write_fd)

    def close(self) -> None:
        """Let go of the read end."""
        os.close(self.read_fd)
