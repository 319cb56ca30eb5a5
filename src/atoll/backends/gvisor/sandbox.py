"""GvisorSandbox: a session in CPython on gVisor's kernel, which runs as a jailed process."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.backends._interpreter import InterpreterLauncher
from atoll.backends.gvisor import report, runsc
from atoll.backends.gvisor.bundle import make_spec
from atoll.backends.gvisor.lease import GvisorLease, Sockets
from atoll.errors import SandboxLostError, SandboxStartError, UnsupportedError
from atoll.jail.measure import probe
from atoll.jail.supervisor.client import supervisor
from atoll.launch.guest_handle import StartingGuest, pipes
from atoll.launch.parked import ParkedProcesses
from atoll.launch.sandbox import GuestSandbox
from atoll.policy import Capability, Isolation

if TYPE_CHECKING:
    import socket

    from atoll.config import SandboxConfig
    from atoll.jail.supervisor.spec import JailSpec
    from atoll.launch.guest_handle import GuestHandle
    from atoll.launch.handshake import RunningGuest
    from atoll.launch.launcher import Launcher
    from atoll.sandbox.availability import Availability
    from atoll.sandbox.context import Context


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


GRACE_SECONDS = 1.0
"""Extra seconds for an interrupt, which passes through another process of the container."""


class GvisorLauncher(InterpreterLauncher):
    """Starts a CPython in a container of gVisor's."""

    backend: ClassVar[str] = runsc.BACKEND
    _runsc: runsc.Runsc
    _platform: str

    async def prepare(self) -> Isolation:
        """Find runsc and the interpreter; gVisor itself needs a jail."""
        if self.config.user is not None:
            raise UnsupportedError(self.backend, "be seen as a user of an image (user=...)")
        self._runsc = await asyncio.to_thread(runsc.find)
        await self.find_interpreter()
        host = await probe.host()
        report.require_jail(host)
        report.require_level(self.config.min_isolation)
        await probe.require_counters(self.backend, self.config, host.level)
        self._platform = await report.platform(self._runsc)
        self.level = Isolation.KERNEL
        return self.level

    async def launch(
        self, config: SandboxConfig, context: Any, shared: Context | None
    ) -> RunningGuest:
        """Start a guest in a container that was parked, or in a new one."""
        size = shared.size if shared else 0
        spec = make_spec(config, self.python, self._runsc, self._platform, size)
        wanted = Wanted.of(spec, network=config.network is not None)
        container = parked.take(wanted)
        parked.refill()
        handle = container.open()
        try:
            guest = await self.greet(handle, config, context=context, shared=shared)
        except (SandboxStartError, SandboxLostError):
            await report.platform(self._runsc, tried=True)  # if runsc itself fails, this says why
            raise
        guest.session.grace_seconds = GRACE_SECONDS
        return guest


class GvisorSandbox(GuestSandbox):
    """CPython whose system calls gVisor handles; gVisor itself runs in a jail."""

    backend: ClassVar[str] = GvisorLauncher.backend
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {
        Capability.FORK,
        Capability.FOLDERS,
    }
    launcher: ClassVar[type[Launcher]] = GvisorLauncher

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:
        """Return whether this backend can run here, and on which platform."""
        return await report.availability(config)
