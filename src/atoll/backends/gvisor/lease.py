"""The lease of a guest in gVisor: interrupts and descriptors go through sockets into the container.

A signal to runsc would not reach the guest, and gVisor does not pass system calls to the host.
Servers in the container are reached through a relay that runs in it.

SECURITY: the relay has the guest's rights. What it says is the guest's word: it is limited in size
and checked, and leads to nothing but the guest.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

from atoll.backends.gvisor.process import start
from atoll.errors import PortError, SandboxError, SandboxLostError, SandboxStartError
from atoll.guest.core.relay import CONNECTED, MAX_LISTED, PORT_BYTES, REFUSED
from atoll.jail.measure import meter
from atoll.jail.measure.meter import ContainerMemory
from atoll.jail.measure.socket_table import listening
from atoll.jail.measure.usage import JailUsage
from atoll.jail.supervisor.client import Lease
from atoll.jail.supervisor.guest_network import ANSWER_SECONDS, NOT_LISTENING
from atoll.jail.walls.guest_sockets import MAX_PORTS
from atoll.types import ListeningPort

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.backends.gvisor.process import ContainerProcess
    from atoll.guest.shared.messages import Json
    from atoll.jail.supervisor.spec import ProcessSpec
    from atoll.types import EndReport


class ContainerNetwork:
    """Asks the relay of one container."""

    def __init__(self, relay: socket.socket) -> None:
        self._relay = relay
        relay.setblocking(False)

    @property
    def closed(self) -> bool:
        """Whether the relay has ended."""
        return self._relay.fileno() < 0

    async def connect(self, port: int) -> socket.socket:
        """Return a connection with a server on the guest's loopback; PortError without one."""
        with contextlib.ExitStack() as undo:
            connection = undo.enter_context(self._ask(port))
            answer = await self._answer(connection, 1)
            if answer == REFUSED:
                raise PortError(port, NOT_LISTENING)
            if answer != CONNECTED:
                self._relay.close()  # guest code may have ended it: the next call starts another
                raise SandboxLostError("the guest's network cannot be reached: its relay has ended")
            undo.pop_all()
        connection.setblocking(True)
        return connection

    async def ports(self) -> tuple[ListeningPort, ...]:
        """Return the TCP ports that the guest listens on, as the relay says."""
        table = bytearray()
        with self._ask(0) as answers:
            while piece := await self._answer(answers, MAX_LISTED):
                table += piece
                if len(table) > MAX_LISTED:
                    break
        try:
            result = sorted(set(listening(bytes(table[:MAX_LISTED]).splitlines())))
        except (ValueError, OSError):
            return ()
        return tuple(ListeningPort(number=number, address=at) for number, at in result[:MAX_PORTS])

    def close(self) -> None:
        """End the relay; connections end with it."""
        self._relay.close()

    def _ask(self, port: int) -> socket.socket:
        """Send the relay one end of a new pair, and return the other."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._relay, [port.to_bytes(PORT_BYTES, "big")], [theirs.fileno()])
            except OSError as exc:
                ours.close()
                self._relay.close()
                raise SandboxLostError(f"the guest's network cannot be reached: {exc}") from None
        ours.setblocking(False)
        return ours

    async def _answer(self, connection: socket.socket, size: int) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.get_running_loop().sock_recv(connection, size)
        except (OSError, TimeoutError):
            return b""


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
