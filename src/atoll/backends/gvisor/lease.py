"""The lease of a guest in gVisor: interrupts and descriptors go through sockets into the container.

A signal to runsc would not reach the guest, and gVisor does not pass system calls to the host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

from atoll.backends.gvisor.ports import ContainerNetwork
from atoll.backends.gvisor.process import start
from atoll.errors import SandboxError, SandboxStartError
from atoll.jail.measure import meter
from atoll.jail.measure.meter import ContainerMemory
from atoll.jail.measure.usage import JailUsage
from atoll.jail.supervisor.client import Lease

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.backends.gvisor.process import ContainerProcess
    from atoll.guest.shared.messages import Json
    from atoll.jail.supervisor.spec import ProcessSpec
    from atoll.types import EndReport

_BYTE = b"x"


class Sockets:
    """The host's ends of a container's sockets: see guest/entry/container."""

    def __init__(self, *, network: bool = False) -> None:
        self.control, self._control_inside = socket.socketpair()
        self.passed, self._passed_inside = socket.socketpair()
        self.network = socket.socketpair() if network else None
        """The relay's socket, if the guest has a network."""
        for fd in (self.control, self.passed, self._passed_inside):
            fd.setblocking(False)

    @property
    def first_fd(self) -> int:
        """The descriptor for the stdin of the container's first process."""
        return self._control_inside.fileno()

    def start(self, guest_fds: list[int]) -> None:
        """Send the guest's descriptors, and close the container's ends here."""
        fds = [*guest_fds, self._passed_inside.fileno()]
        fds += [self.network[1].fileno()] if self.network else []
        socket.send_fds(self.control, [_BYTE], fds)
        self._control_inside.close()
        if self.network:
            self.network[1].close()

    def give(self, fds: tuple[int, ...]) -> None:
        """Send descriptors one by one, after dropping those that the guest did not take."""
        self._drop_untaken()
        for fd in fds:
            socket.send_fds(self.passed, [_BYTE], [fd])

    def start_ports(self) -> socket.socket:
        """Have the first process start a relay of the guest's ports; return the socket to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self.control, [b"p"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ours

    def interrupt(self) -> None:
        """Tell the first process to interrupt the guest."""
        with contextlib.suppress(OSError):
            self.control.send(b"i")

    def start_process(self, fds: list[int]) -> None:
        """Tell the first process to start another one, with these descriptors."""
        socket.send_fds(self.control, [b"s"], fds)

    def wait_status(self) -> int | None:
        """Return the guest's wait status that the first process sent; None if it sent none."""
        try:
            return int(self.control.recv(16))
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Close all sockets, which ends the container."""
        ends = (self.control, self._control_inside, self.passed, self._passed_inside)
        for fd in (*ends, *(self.network or ())):
            fd.close()

    def _drop_untaken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                _, fds, _, _ = socket.recv_fds(self._passed_inside, 1, 1)
                for fd in fds:
                    os.close(fd)


class GvisorLease(Lease):
    """The hold on one container."""

    def __init__(self, sock: socket.socket, sockets: Sockets) -> None:
        super().__init__(sock)
        self._sockets = sockets

    def interrupt(self) -> None:
        """Send SIGINT to the guest."""
        self._sockets.interrupt()

    def give(self, *fds: int) -> None:
        """Offer descriptors to the guest, replacing earlier ones that it did not take."""
        try:
            self._sockets.give(fds)
        except OSError as exc:
            raise SandboxError(f"the guest cannot be given a descriptor: {exc}") from None

    async def start_process(self, wanted: ProcessSpec) -> ContainerProcess:
        """Start a process beside the guest; ProcessError says why it does not start."""
        process = start(wanted, self._sockets.start_process)
        await process.started()
        return process

    async def listener(self) -> socket.socket:
        """Return the listener for the guest's connections to its proxy."""
        if self._sockets.network is None:
            raise SandboxStartError("network", "the guest was started without one")
        return RelayListener(fileno=os.dup(self._sockets.network[0].fileno()))

    def _enter_network(self) -> ContainerNetwork:
        try:
            return ContainerNetwork(self._sockets.start_ports())
        except OSError as exc:
            raise SandboxError(f"the guest's network cannot be reached: {exc}") from None

    def _usage_from(self, source: Json) -> JailUsage:
        return JailUsage(source) if source.get("files") else TreeUsage(source)

    def _finish(self, report: EndReport) -> None:
        super()._finish(_as_guest_ended(report, self._sockets.wait_status()))

    def _detach(self) -> None:
        super()._detach()
        self._sockets.close()


class RelayListener(socket.socket):
    """Has the interface of a listening socket; each request of the relay is a connection."""

    def accept(self) -> tuple[socket.socket, None]:
        """Return one end of a new connection; the relay gets the other."""
        if not self.recv(1):
            raise ConnectionAbortedError("the relay has ended")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self, [_BYTE], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ours, None


class TreeUsage(JailUsage):
    """The usage of all processes of a jail, from /proc: for hosts without control groups."""

    def __init__(self, source: Mapping[str, Any]) -> None:
        super().__init__(source)
        self._container = ContainerMemory()
        self._highest = 0

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of living processes and of their reaped children."""
        return meter.cpu_seconds(meter.processes([self._parent])) if self._parent else None

    def memory(self) -> int | None:
        """Return the present memory of gVisor, including its guest's."""
        return self._container.measure(meter.processes([self._parent])) if self._parent else None

    def peak_memory(self) -> int | None:
        """Return the highest value read so far: gVisor does not count the peak."""
        now = self.memory()
        self._highest = max(self._highest, now or 0)
        return None if now is None else self._highest


def _as_guest_ended(report: EndReport, status: int | None) -> EndReport:
    """Return how the guest ended; runsc's exit code alone does not say it."""
    if status is None:  # gVisor was killed: by the host, or at its memory limit
        return dataclasses.replace(report, exit=None, signal=signal.SIGKILL)
    killed = os.WIFSIGNALED(status)
    return dataclasses.replace(
        report,
        exit=None if killed else os.WEXITSTATUS(status),
        signal=os.WTERMSIG(status) if killed else None,
        out_of_memory=report.out_of_memory and killed,
    )
