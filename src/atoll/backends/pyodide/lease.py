"""The lease of a Deno process, and the bytes that are sent to its stdin beside messages.

Deno cannot receive descriptors, so the host reads them and sends their content.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import stat
from typing import TYPE_CHECKING

from atoll.jail.supervisor.client import Lease

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from atoll.sandbox.channel import HostChannel
    from atoll.types import EndReport

CHUNK = 1 << 18
ABORTED = 128 + signal.SIGABRT
"""The driver's exit code if the guest is broken, not ended by itself; see driver.mjs."""


class DenoLease(Lease):
    """Sends a guest bytes where other backends pass a descriptor."""

    def __init__(
        self, sock: socket.socket, channel: HostChannel, context_bytes: int, *, listens: bool
    ) -> None:
        super().__init__(sock)
        self._channel, self._context_bytes, self._listens = channel, context_bytes, listens
        self._pumps: set[asyncio.Task[None]] = set()
        self._into: Callable[[bytes], None] | None = None

    def interrupt(self) -> None:
        """Tell the driver to interrupt the guest; kill the process if it does not listen.

        By a line, because a signal could overtake the request to interrupt.
        """
        if self._listens:
            self._channel.send_bytes(b"interrupt\n")
        else:
            self.kill()

    def give(self, *fds: int) -> None:
        """Send the content of a file or pipe."""
        for fd in fds:
            self._start(os.dup(fd))

    def collect(self, into: Callable[[bytes], None] | None) -> None:
        """Pass on the bytes that the guest sends from now on."""
        self._into = into

    def take(self, data: bytes) -> None:
        """Take bytes of the guest for the present collector."""
        if self._into is not None:
            self._into(data)

    async def close(self) -> None:
        """End the process, and drop what was not sent yet."""
        for pump in self._pumps:
            pump.cancel()
        await super().close()

    def _finish(self, report: EndReport) -> None:
        """Report a WebAssembly trap as a crash, although Deno survived it."""
        if report.exit == ABORTED:
            report = dataclasses.replace(report, exit=None, signal=signal.SIGABRT)
        super()._finish(report)

    def _start(self, fd: int) -> None:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        pump = asyncio.ensure_future(self._pump_file(fd) if regular else self._pump_pipe(fd))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        pump.add_done_callback(lambda _: os.close(fd))

    async def _pump_file(self, fd: int) -> None:
        """Send the context without its terminating NUL."""
        for at in range(0, self._context_bytes, CHUNK):
            await self._forward(os.pread(fd, min(CHUNK, self._context_bytes - at), at))
        await self._forward(b"")

    async def _pump_pipe(self, fd: int) -> None:
        while data := await asyncio.to_thread(os.read, fd, CHUNK):
            await self._forward(data)
        await self._forward(b"")

    async def _forward(self, data: bytes) -> None:
        self._channel.send_bytes(b"bytes %d\n" % len(data) + data)
        await self._channel.drained()
