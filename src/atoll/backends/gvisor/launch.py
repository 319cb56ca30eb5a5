"""Starts gVisor in a jail, with the interpreter in it; one more waits for the next sandbox."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.backends.gvisor.lease import GvisorLease, Sockets
from atoll.jail.supervisor.client import supervisor
from atoll.launch.guest_handle import StartingGuest, pipes
from atoll.launch.parked import ParkedProcesses

if TYPE_CHECKING:
    import socket

    from atoll.jail.supervisor.spec import JailSpec
    from atoll.launch.guest_handle import GuestHandle


@dataclass(frozen=True, slots=True)
class Wanted:
    """A kind of container: a parked one is used only for the same kind."""

    spec: JailSpec
    network: bool
    folders: tuple[tuple[int, int], ...]
    """Identities of the host paths that it sees: a folder may have been replaced meanwhile."""

    @classmethod
    def of(cls, spec: JailSpec, *, network: bool) -> Wanted:
        """Return the kind with the present identities of host paths; OSError if one is missing."""
        paths = [bind.source for bind in spec.binds] + ([spec.workspace] if spec.workspace else [])
        result = [os.stat(path) for path in paths]
        return cls(spec, network, tuple((status.st_dev, status.st_ino) for status in result))


@dataclass(frozen=True, slots=True)
class StartingContainer:
    """A guest in gVisor that was requested without an event loop."""

    guest: StartingGuest
    sockets: Sockets

    @property
    def ready(self) -> bool:
        """Whether the guest has sent its first message."""
        return self.guest.ready

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.guest.ended

    def open(self) -> GuestHandle:
        """Return the handle, attached to the running event loop."""
        return self.guest.open(lambda sock, _channel: GvisorLease(sock, self.sockets))

    def close(self) -> None:
        """End the guest."""
        self.guest.close()
        self.sockets.close()


def request_container(wanted: Wanted) -> StartingContainer:
    """Request a guest. runsc passes only stdin on, so a socket there carries everything else."""
    sockets = Sockets(network=wanted.network)
    try:
        with pipes(4) as (requests, answers, output, errors):
            given = [requests[0], answers[1], errors[1], output[1]]
            lease = _ask(wanted, sockets, errors[1])
            sockets.start(given)
            for fd in given:
                os.close(fd)
    except BaseException:
        sockets.close()
        raise
    ends = (answers[0], requests[1])
    return StartingContainer(StartingGuest(lease, ends, [output[0], errors[0]]), sockets)


def _ask(wanted: Wanted, sockets: Sockets, errors: int) -> socket.socket:
    """Request the jail of a runsc whose stderr is a new open of the guest's.

    gVisor makes its descriptors non-blocking, so the guest needs another open file description.
    """
    with open(os.devnull, "wb") as null, open(f"/proc/self/fd/{errors}", "wb") as own:
        return supervisor.ask(wanted.spec, [sockets.first_fd, null.fileno(), own.fileno()])


parked = ParkedProcesses(request_container, most=1)
"""The container that the next sandbox takes."""
