"""One jail under the warden: its processes, its lease, its control group, its end."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import tempfile
import time
from typing import TYPE_CHECKING, Any

from atoll.jail import meter
from atoll.jail.remove import remove_tree

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from atoll.jail.cgroup import Cgroup
    from atoll.jail.spec import JailSpec

GROUP_PATIENCE_SECONDS = 5.0
MEMORY_SLACK = 32 << 20


class Ward:
    """What the warden knows of one jail."""

    def __init__(
        self,
        spec: JailSpec,
        lease: socket.socket,
        group: Cgroup | None,
        selector: selectors.BaseSelector,
    ) -> None:
        self.spec, self.lease, self.cgroup, self._selector = spec, lease, group, selector
        self.private_folder = None if spec.jailed or spec.workspace else tempfile.mkdtemp("-atoll")
        try:
            self._status, self.status_write, self.lifeline_read, self._lifeline = _two_pipes()
        except OSError:
            if self.private_folder:
                os.rmdir(self.private_folder)
            raise
        self._starter = self._pid = 0
        self._pidfd: int | None = None
        self._killed = self._reaped = self._over_memory = False
        self._wait_status: int | None = None
        self._failure: str | None = None
        self._buffer = b""
        self._deadline: float | None = None
        self._final: dict[str, Any] = {}

    def forked(self, pid: int) -> None:
        """The first process is on its way."""
        self._starter = pid
        os.close(self.status_write)
        os.close(self.lifeline_read)
        self._watch(self.lease.fileno(), self._on_command)
        self._watch(self._status, self._on_status)

    def abandon(self) -> None:
        """Nothing was forked after all."""
        if self.private_folder:
            os.rmdir(self.private_folder)
        for fd in (self._status, self.status_write, self.lifeline_read, self._lifeline):
            os.close(fd)

    def _on_status(self) -> None:
        """Read what the jail reports. Without a root of its own that ends when it executes."""
        if self._status not in self._selector.get_map():
            return  # read to its end by _on_exit, in the same round
        data = os.read(self._status, 65536)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._note(line.decode(errors="replace"))
        if data:
            return
        self._selector.unregister(self._status)
        if not self._pid:  # it never came to the process that is waited for
            self._reap_starter()
            self._reaped = True

    def _on_exit(self) -> None:
        """The process has ended, and with it (as pid 1) every other of its namespace."""
        assert self._pidfd is not None
        self._selector.unregister(self._pidfd)
        while self._status in self._selector.get_map():
            self._on_status()  # its last report may still be in the pipe
        self._reap_starter()
        _, status = os.waitpid(self._pid, 0)
        if self._wait_status is None:
            self._wait_status = status
        self._reaped = True

    def _reap_starter(self) -> None:
        """The process that only started the other has ended, or is about to."""
        if self._starter and self._starter != self._pid:
            os.waitpid(self._starter, 0)
            self._starter = 0

    def _on_command(self) -> None:
        """Do what the host asks on the lease; its end means kill."""
        try:
            command = self.lease.recv(64)
        except OSError:
            command = b""
        if command == b"interrupt":
            self._signal(signal.SIGINT)
        elif command == b"usage":
            self._tell("usage", cpu_seconds=self._cpu_seconds())
        else:
            self.kill()
        if not command:
            self._selector.unregister(self.lease)

    def kill(self) -> None:
        """End every process of the jail."""
        self._killed = True
        self._signal(signal.SIGKILL)

    def needs_attention(self) -> bool:
        """Whether time alone can change something: memory to measure, a group to remove."""
        return self._reaped or self._measured()

    def check_memory(self) -> None:
        """Without a control group, end a jail whose processes together are over the limit."""
        if not self._measured() or self._reaped or not self._pid:
            return
        assert self.spec.limits.memory is not None
        limit = self.spec.limits.memory + self.spec.limits.context + MEMORY_SLACK
        if meter.memory_bytes(self._pid, limit) > limit:
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
        if self.private_folder:
            with contextlib.suppress(OSError):
                remove_tree(self.private_folder)
        if self.lease in self._selector.get_map():
            self._selector.unregister(self.lease)
        for fd in (self._status, self._lifeline, self._pidfd):
            if fd is not None:
                os.close(fd)
        event = "failed" if self._failure else "ended"
        self._tell(event, **self._final)
        self.lease.close()

    def _note(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "pid":
            self._pid = int(rest)
            self._pidfd = os.pidfd_open(self._pid)
            self._watch(self._pidfd, self._on_exit)
            if self._killed:
                self._signal(signal.SIGKILL)
        elif word == "exit":
            self._wait_status = int(rest)
        elif word == "error":
            self._failure = self._failure or rest
        elif word == "built":
            self._reap_starter()
            self._tell("started", cgroup=self.cgroup.version if self.cgroup else None)

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, callback)

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
        return self.cgroup is None and self.spec.limits.memory is not None

    def _cpu_seconds(self) -> float:
        counted = self.cgroup.cpu_seconds() if self.cgroup else None
        return meter.cpu_seconds(self._pid) if counted is None else counted

    def _signal(self, number: signal.Signals) -> None:
        if self._reaped:
            return  # the number may be somebody else's by now
        # Never the starter: killed between its fork and its report, it would leave a pid 1 that
        # nobody knows and nobody waits for. It reports within milliseconds; see _note.
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _tell(self, event: str, **fields: Any) -> None:
        with contextlib.suppress(OSError):
            self.lease.send(json.dumps({"event": event, **fields}).encode())


def _two_pipes() -> tuple[int, int, int, int]:
    first = os.pipe2(os.O_CLOEXEC)
    try:
        return (*first, *os.pipe2(os.O_CLOEXEC))
    except OSError:
        for fd in first:
            os.close(fd)
        raise
