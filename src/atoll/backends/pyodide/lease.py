"""The hold on a Deno process, and what crosses to it beside messages: bytes, through its stdin.

Deno cannot be handed descriptors, so what other guests are given as one is read here and sent on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import stat
from typing import TYPE_CHECKING

from atoll.jail.client import Lease

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from atoll.channel import HostChannel
    from atoll.types import EndReport

CHUNK = 1 << 18
ABORTED = 128 + signal.SIGABRT
"""What the driver exits with when the guest has not ended itself but is broken; see driver.mjs."""


class DenoLease(Lease):
    """Gives a guest bytes where others give a descriptor."""

    def __init__(
        self, sock: socket.socket, channel: HostChannel, context_bytes: int, *, listens: bool
    ) -> None:
        super().__init__(sock)
        self._channel, self._context_bytes, self._listens = channel, context_bytes, listens
        self._pumps: set[asyncio.Task[None]] = set()
        self._into: Callable[[bytes], None] | None = None

    def interrupt(self) -> None:
        """Have the driver interrupt the guest; where it does not listen, end the process.

        A line, as a signal could overtake the request that it is about.
        """
        if self._listens:
            self._channel.send_bytes(b"interrupt\n")
        else:
            self.kill()

    def give(self, *fds: int) -> None:
        """Send what is in a file, or comes out of a pipe."""
        for fd in fds:
            self._start(os.dup(fd))

    def collect(self, into: Callable[[bytes], None] | None) -> None:
        """Hand on the bytes that the guest sends from now on."""
        self._into = into

    def take(self, data: bytes) -> None:
        """Bytes of the guest's, for whoever collects them."""
        if self._into is not None:
            self._into(data)

    async def close(self) -> None:
        """End the process, and let go of what was on its way."""
        for pump in self._pumps:
            pump.cancel()
        await super().close()

    def _finish(self, report: EndReport) -> None:
        """A trap of WebAssembly and the like is a crash, though Deno has outlived it."""
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
        """All of the context but its terminating NUL."""
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
