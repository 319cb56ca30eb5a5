"""The supervisor as a process of its host: started on first use, asked for jails.

It needs no event loop: a command that runs one jail loads as little as it can.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

from atoll.concurrency import boot, forks
from atoll.errors import SandboxStartError
from atoll.jail.supervisor import packets, spec

if TYPE_CHECKING:
    from atoll.jail.supervisor.spec import Spec

_BOOT = boot.code("atoll.jail.supervisor.main")
_SEND_BUFFER = 1 << 20
_EXIT_SECONDS = 5
_DYING_SECONDS = 0.2
SEND_SECONDS = 5


class SupervisorClient:
    """The supervisor of this host process; started again if it died."""

    def __init__(self) -> None:
        self._lock = forks.new_lock()
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._suspected: int | None = None

    def ask(self, wanted: Spec, guest_fds: list[int]) -> socket.socket:
        """Request a jail and return only the lease's socket, for callers without an event loop."""
        ours, theirs = socket_pair("supervisor")
        with theirs:
            try:
                self._send(spec.request(wanted), [theirs.fileno(), *guest_fds])
            except OSError as exc:
                ours.close()
                raise SandboxStartError("supervisor", str(exc)) from exc
        return ours

    def start(self) -> None:
        """Start the supervisor if it does not run, so that it loads while the caller goes on."""
        with self._lock:
            self._ensure()

    def stop(self) -> None:
        """End the supervisor and all its jails."""
        with self._lock:
            self._forget()

    def end_stuck(self, pid: int | None) -> None:
        """Kill the supervisor if it still has this pid; its jails end and their leases fail."""
        with self._lock:
            if self._process is not None and self._process.pid == pid and self._is_ours:
                self._process.kill()

    def wake(self, pid: int | None) -> None:
        """Let the supervisor go on if it still has this pid and was stopped.

        Without the lock: its owner may be waiting for the supervisor.
        """
        process = self._process
        if process is not None and process.pid == pid and self._is_ours:
            process.send_signal(signal.SIGCONT)

    def suspect(self, pid: int | None) -> None:
        """Note that a lease of the supervisor with this pid was closed without a report."""
        self._suspected = pid

    @property
    def pid(self) -> int | None:
        """The supervisor's process, if it runs."""
        return self._process.pid if self._process else None

    @property
    def _is_ours(self) -> bool:
        """Whether the supervisor was started by this process, not by one that it was forked off."""
        return self._owner == os.getpid()

    def _send(self, data: bytes, fds: list[int]) -> None:
        with self._lock:
            try:
                packets.send_bytes(self._ensure(), data, fds)
            except ConnectionError:  # it is about to end: its socket goes before its process
                self._forget()
                packets.send_bytes(self._ensure(), data, fds)

    def _ensure(self) -> socket.socket:
        if not self._is_ours:
            if self._control is not None:
                self._control.close()
            self._process = self._control = None
        if self._control is not None and self._process and self._runs(self._process):
            return self._control
        self._forget()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        with theirs:
            self._process = _start(theirs.fileno())
        self._control, self._owner = ours, os.getpid()
        atexit.register(self.stop)
        return ours

    def _runs(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether the supervisor lives. A dying one has closed its leases, not yet its process."""
        if self._suspected == process.pid:
            self._suspected = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_DYING_SECONDS)
        return process.poll() is None

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None and self._is_ours:
            try:
                self._process.wait(_EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._control = None
        atexit.unregister(self.stop)


_NO_DEBUGGER = ("-X", "disable-remote-debug")
"""SECURITY: no sys.remote_exec() runs code in the supervisor and what it forks (Python 3.14)."""


def _start(control_fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", *_NO_DEBUGGER, "-c", _BOOT, boot.ROOT, str(control_fd)],
        env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(control_fd,),
        start_new_session=True,
    )


def socket_pair(step: str) -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a lease; SandboxStartError if no descriptor is free."""
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as exc:
        raise SandboxStartError(step, str(exc)) from exc


supervisor = SupervisorClient()
