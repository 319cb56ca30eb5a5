"""GvisorSandbox: a session in CPython on gVisor's kernel, which runs as a jailed process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.backends._interpreter import InterpreterLauncher
from atoll.backends.gvisor import report, runsc
from atoll.backends.gvisor.bundle import make_spec
from atoll.backends.gvisor.launch import Wanted, parked
from atoll.errors import SandboxLostError, SandboxStartError
from atoll.jail.measure import probe
from atoll.launch.handshake import handshake
from atoll.launch.sandbox import GuestSandbox
from atoll.policy import Capability, Isolation

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.launch.handshake import RunningGuest
    from atoll.launch.launcher import Launcher
    from atoll.sandbox.availability import Availability
    from atoll.sandbox.context import Context

GRACE_SECONDS = 1.0
"""Extra seconds for an interrupt, which passes through another process of the container."""


class GvisorLauncher(InterpreterLauncher):
    """Starts a CPython in a container of gVisor's."""

    backend: ClassVar[str] = runsc.BACKEND
    _runsc: runsc.Runsc
    _platform: str

    async def prepare(self) -> Isolation:
        """Find runsc and the interpreter; gVisor itself needs a jail."""
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
            guest = await handshake(handle, config, context, shared)
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
