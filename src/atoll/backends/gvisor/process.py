"""A process beside a guest in gVisor: pipes of the host, and a socket for its start and end.

SECURITY: what comes on the socket is the guest's word. See guest/entry/started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
from typing import TYPE_CHECKING

from atoll.errors import ProcessError
from atoll.launch.guest_handle import pipes

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.jail.supervisor.spec import ProcessSpec

START_SECONDS = 20.0
MAX_LINE = 1 << 12
KILLED = int(signal.SIGKILL)


class ContainerProcess:
    """One process. It is killed when this is closed."""

    def __init__(self, sock: socket.socket, fds: list[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, self.fds = sock, fds
        self._said = b""
        self._started: asyncio.Future[int] = self._loop.create_future()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        """Its wait status."""
        self.pid = 0
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._on_readable)

    async def started(self) -> None:
        """Wait until the program runs; ProcessError says why it does not."""
        try:
            async with asyncio.timeout(START_SECONDS):
                self.pid = await self._started
        except BaseException as exc:
            for fd in self.fds:
                os.close(fd)
            self.close()
            if not isinstance(exc, TimeoutError):
                raise
            reason = f"it did not start within {START_SECONDS:.0f} s"
            raise ProcessError(f"the process could not be started: {reason}") from None

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        self._say(f"signal {number}\n")

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        self._say(f"resize {rows} {columns}\n")

    def close(self) -> None:
        """Kill the process, if it runs."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        if not self.ended.done():
            self.ended.set_result(KILLED)
        if not self._started.done():
            self._started.set_exception(
                ProcessError("the process could not be started: the sandbox has ended")
            )
            self._started.exception()  # asyncio logs an exception that was never read

    def _say(self, text: str) -> None:
        if self._socket.fileno() >= 0:
            with contextlib.suppress(OSError):
                self._socket.send(text.encode())

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(MAX_LINE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            self._note(word, rest)
        if not data or len(self._said) > MAX_LINE:
            self.close()

    def _note(self, word: str, rest: str) -> None:
        number = int(rest) if rest.isdecimal() and len(rest) < 10 else None
        if word == "started" and number is not None and not self._started.done():
            self._started.set_result(number)
        elif word == "failed" and not self._started.done():
            self._started.set_exception(ProcessError(f"the process could not be started: {rest}"))
        elif word == "ended" and number is not None and not self.ended.done():
            self.ended.set_result(number & 0xFFFF)


def start(spec: ProcessSpec, hand_over: Callable[[list[int]], None]) -> ContainerProcess:
    """Send the container the descriptors and the description of a process."""
    ours, theirs = socket.socketpair()
    with theirs, pipes(3) as (stdin, out, err):
        inside = [stdin[0], out[1], err[1]]
        for fd in inside:  # the guest, another user, may then open /dev/stdout
            os.fchmod(fd, 0o666)
        try:
            hand_over([theirs.fileno(), *inside])
            described = spec.encoded()
            ours.sendall(struct.pack("I", len(described)) + described)
        except OSError as exc:
            ours.close()
            raise ProcessError(f"the process could not be started: {exc}") from exc
        for fd in inside:
            os.close(fd)
    kept = [stdin[1], out[0], err[0]]
    if not spec.stdin and spec.terminal is None:
        os.close(kept.pop(0))
    return ContainerProcess(ours, kept)
