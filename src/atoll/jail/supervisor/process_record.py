"""What the supervisor knows of a process that the host started in a live jail, beside its guest.

    host: "start", socket, description ──▶ supervisor ──fork──▶ helper ──clone──▶ process
      ◀── "started", pid, its pipes or terminal ──┤◀─────────── see walls/joined ──────┤
      ─── "signal" ──▶ its process group          │                                    │
      ◀── "ended", wait status ───────────────────┘◀───────────── its end ─────────────┘

The socket is its lease: the process is killed when that closes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import traceback
from typing import TYPE_CHECKING, Any

from atoll.jail.measure import meter
from atoll.jail.measure.cgroup import RUNTIME_PROCESSES
from atoll.jail.supervisor import packets
from atoll.jail.walls import joined, syscalls

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from atoll.jail.supervisor.jail_record import JailRecord

HIGHEST_SIGNAL = 64


class ProcessRecord:
    """One process, from the request to start it until it is reaped."""

    def __init__(
        self, owner: JailRecord, lease: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        self._owner, self._lease, self._selector = owner, lease, selector
        self._status, self._their_status = packets.pair()
        self._helper = 0
        self.pid = 0
        """Its pid in the supervisor's namespace, from when it is forked until it is reaped."""
        self._pidfd: int | None = None
        self._inner_pid = 0
        self._streams: list[int] = []
        self._failure = ""
        self._executed = False
        lease.setblocking(False)
        self._status.setblocking(False)

    def start(self, spec_fd: int, *, switches: bool) -> None:
        """Fork the helper; OSError if that fails, and everything is released."""
        try:
            self._require_room()
            self._helper = self._fork()
        except OSError:
            packets.close_all((self._status.detach(), self._their_status.detach()))
            raise
        if self._helper == 0:
            self._join(spec_fd, switches=switches)
        self._their_status.close()
        self._watch(self._status.fileno(), self._on_status)
        self._watch(self._lease.fileno(), self._on_command)

    def _require_room(self) -> None:
        """Raise OSError if the jail has all processes that it may have.

        A control group refuses by itself. RLIMIT_NPROC refuses a process that another one of the
        jail forks; this one is forked outside.
        """
        owner = self._owner
        limit = owner.walls().limits.processes
        if owner.cgroup is not None or limit is None:
            return
        present = meter.processes([*owner.roots(), *owner.started_pids()])
        if len(present) >= limit + RUNTIME_PROCESSES:
            raise OSError(errno.EAGAIN, "its limit of processes is reached")

    def _fork(self) -> int:
        """Fork, in version 2 straight into the control group: to enter it later takes long."""
        group = self._owner.cgroup
        if group is None or group.version != 2:
            return os.fork()
        folder = os.open(group.folders["memory"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return syscalls.fork(0, folder)
        finally:
            os.close(folder)

    def _join(self, spec_fd: int, *, switches: bool) -> None:
        """In the helper. SECURITY: nothing may unwind into the supervisor's event loop."""
        try:
            group = self._owner.cgroup
            jail = self._owner.walls()
            jail.cgroup_fds = group.open() if group is not None and group.version == 1 else []
            entrance = self._owner.entrance()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in range(3):
                os.dup2(null, fd)
            kept = {*entrance.descriptors(), *jail.cgroup_fds, spec_fd, self._their_status.fileno()}
            syscalls.close_all_but({0, 1, 2, *kept})
            joined.join(jail, entrance, spec_fd, self._their_status, switches=switches)
        except BaseException as exc:  # noqa: BLE001 - as above
            with contextlib.suppress(OSError):
                packets.send(self._their_status, "error", reason=f"{exc}"[:1000])
        finally:
            os._exit(1)

    def kill(self) -> None:
        """Kill it and its process group; what else it started ends with its session."""
        self._send(signal.SIGKILL)
        if self._helper:
            os.kill(self._helper, signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.pid:  # not reaped: the number is its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if number == signal.SIGKILL:  # also before it has made its process group
                    os.kill(self.pid, number)

    def _on_command(self) -> None:
        """Send a signal that the host asks for; kill the process when the lease is closed."""
        try:
            message = packets.receive(self._lease)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            self._unwatch(self._lease.fileno())
            self.kill()
        elif message.kind == "signal" and 0 < message.fields["number"] <= HIGHEST_SIGNAL:
            self._send(message.fields["number"])

    def _on_status(self) -> None:
        """Read a report of the helper or the process; its end means that the program runs."""
        try:
            report = packets.receive(self._status)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            report = None
        if report is not None:
            self._note(report)
            return
        self._unwatch(self._status.fileno())
        self._reap_helper()
        if self._failure or not self.pid:
            self._tell("failed", reason=self._failure or "it was ended while it started")
        else:
            self._executed = True
            self._tell("started", self._streams, pid=self._inner_pid, outer=self.pid)
        self._close_streams()
        if not self.pid:
            self._close()

    def _note(self, report: packets.Message) -> None:
        if report.kind == "forked":
            self.pid = report.fields["pid"]
            self._pidfd = os.pidfd_open(self.pid)
            self._watch(self._pidfd, self._on_end)
        elif report.kind == "ready":
            self._inner_pid, self._streams = report.fields["pid"], report.fds
        else:
            self._failure = self._failure or report.fields["reason"]

    def _on_end(self) -> None:
        assert self._pidfd is not None
        while self._status.fileno() in self._selector.get_map():  # what it said comes first
            self._on_status()
        self._unwatch(self._pidfd)
        _, status, used = os.wait4(self.pid, 0)
        self._owner.ended_cpu_seconds += used.ru_utime + used.ru_stime
        self.pid = 0
        if self._executed:
            self._tell("ended", status=status)
        self._close()

    def _reap_helper(self) -> None:
        """Reap the helper: it has closed its end of the socket, and exits."""
        if self._helper:
            os.waitpid(self._helper, 0)
            self._helper = 0

    def _tell(self, event: str, fds: list[int] | None = None, **fields: Any) -> None:
        with contextlib.suppress(OSError):
            packets.send(self._lease, event, fds or (), **fields)

    def _close_streams(self) -> None:
        packets.close_all(self._streams)
        self._streams = []

    def _close(self) -> None:
        self._owner.started.discard(self)
        self._close_streams()
        for sock in (self._lease, self._status):
            self._unwatch(sock.fileno())
            sock.close()
        if self._pidfd is not None:
            os.close(self._pidfd)

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                callback()
            except Exception:  # noqa: BLE001 - a fault of one process is not its session's
                traceback.print_exc()
                self._unwatch(fd)
                self.kill()

        self._selector.register(fd, selectors.EVENT_READ, guarded)

    def _unwatch(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)
