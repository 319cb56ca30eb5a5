"""The host's hold on a process that it started in a live jail: its pipes or terminal, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import TYPE_CHECKING

from atoll.errors import ProcessError, SandboxLostError
from atoll.jail.supervisor import packets
from atoll.jail.walls.joined import set_size
from atoll.rpc import blobs

if TYPE_CHECKING:
    from atoll.jail.supervisor.spec import ProcessSpec

KILLED = int(signal.SIGKILL)
"""The wait status of a process that ended with its jail."""


class ProcessLease:
    """One process. It is killed when this is closed."""

    start_seconds = 10.0

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._started: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        """Its wait status."""
        self.pid = self.outer_pid = 0
        """Its pid in the jail, and the host's."""
        self.fds: list[int] = []
        """The host's ends: its terminal alone, or stdin (if it has one), stdout and stderr."""
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._on_readable)

    async def started(self) -> None:
        """Wait until the program runs; ProcessError says why it does not."""
        try:
            async with asyncio.timeout(self.start_seconds):
                await self._started
        except BaseException as exc:
            packets.close_all(self.fds)
            self.close()
            if not isinstance(exc, TimeoutError):
                raise
            reason = f"it did not start within {self.start_seconds:.0f} s: was it stopped?"
            raise ProcessError(f"the process could not be started: {reason}") from None

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        if not self.ended.done():
            with contextlib.suppress(OSError):
                packets.send(self._socket, "signal", number=number)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        set_size(self.fds[0], rows, columns)

    def close(self) -> None:
        """Kill the process, if it runs. The descriptors are the caller's to close."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        if not self.ended.done():
            self.ended.set_result(KILLED)

    def _on_readable(self) -> None:
        try:
            message = packets.receive(self._socket, packets.SMALL)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            self._fail(SandboxLostError("the sandbox has ended, and the process with it"))
            self.close()
        elif message.kind == "started":
            self.pid, self.outer_pid = message.fields["pid"], message.fields["outer"]
            self.fds = message.fds
            if not self._started.done():
                self._started.set_result(None)
        elif message.kind == "failed":
            step, _, reason = message.fields["reason"].partition("start: ")
            self._fail(ProcessError(f"the process could not be started: {reason or step}"))
        elif message.kind == "ended" and not self.ended.done():
            self.ended.set_result(message.fields["status"])

    def _fail(self, error: Exception) -> None:
        if not self._started.done():
            self._started.set_exception(error)
            self._started.exception()  # asyncio logs an exception that was never read


def start_process(jail: socket.socket, spec: ProcessSpec) -> ProcessLease:
    """Request a process from the supervisor, by the lease of its jail."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    described = blobs.write(spec.encoded())
    try:
        packets.send(jail, "start", [theirs.fileno(), described])
    except OSError as exc:
        ours.close()
        raise ProcessError(f"the process could not be started: {exc}") from exc
    finally:
        os.close(described)
        theirs.close()
    return ProcessLease(ours)
