"""A process beside a guest in gVisor: pipes of the host, and a socket for its start and end.

SECURITY: what comes on the socket is the guest's word. See guest/entry/started.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING

from atoll.errors import ProcessError
from atoll.jail.supervisor.process_lease import ProcessLease
from atoll.launch.guest_handle import pipes

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.jail.supervisor.spec import ProcessSpec

MAX_LINE = 1 << 12


class ContainerProcess(ProcessLease):
    """One process. It is killed when this is closed."""

    start_seconds = 20.0

    def __init__(self, sock: socket.socket, fds: list[int]) -> None:
        super().__init__(sock)
        self.fds = fds
        self._received = b""

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        self._send(f"signal {number}\n")

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        self._send(f"resize {rows} {columns}\n")

    def close(self) -> None:
        """Kill the process, if it runs."""
        super().close()
        self._fail(ProcessError("the process could not be started: the sandbox has ended"))

    def _send(self, text: str) -> None:
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
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            self._note(word, rest)
        if not data or len(self._received) > MAX_LINE:
            self.close()

    def _note(self, word: str, rest: str) -> None:
        number = int(rest) if rest.isdecimal() and len(rest) < 10 else None
        if word == "started" and number is not None and not self._started.done():
            self.pid = number
            self._started.set_result(None)
        elif word == "failed":
            self._fail(ProcessError(f"the process could not be started: {rest}"))
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
