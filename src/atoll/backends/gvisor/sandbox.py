"""GvisorSandbox: a session in CPython on gVisor's kernel, which runs as a jailed process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from atoll.backends._interpreter_sandbox import InterpreterSandbox
from atoll.backends.gvisor import report, runsc
from atoll.backends.gvisor.bundle import make_spec
from atoll.backends.gvisor.launch import Wanted, parked
from atoll.errors import SandboxLostError, SandboxStartError
from atoll.jail.measure import probe
from atoll.launch.handshake import handshake
from atoll.policy import Capability, Isolation

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.launch.handshake import RunningGuest
    from atoll.sandbox.availability import Availability

GRACE_SECONDS = 1.0
"""Extra seconds for an interrupt, which passes through another process of the container."""


class GvisorSandbox(InterpreterSandbox):
    """CPython whose system calls gVisor handles; gVisor itself runs in a jail."""

    backend: ClassVar[str] = runsc.BACKEND
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {Capability.FORK}

    _runsc: runsc.Runsc
    _platform: str

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:
        """Return whether this backend can run here, and on which platform."""
        return await report.availability(config)

    async def _prepare(self) -> Isolation:
        self._runsc = await asyncio.to_thread(runsc.find)
        await self._find_interpreter()
        host = await probe.host()
        report.require_jail(host)
        report.require_level(self._config.min_isolation)
        await probe.require_counters(self.backend, self._config, host.level)
        self._platform = await report.platform(self._runsc)
        return Isolation.KERNEL

    async def _launch(self) -> RunningGuest:
        size = self._shared.size if self._shared else 0
        spec = make_spec(self._config, self._python, self._runsc, self._platform, size)
        wanted = Wanted.of(spec, network=self._config.network is not None)
        container = parked.take(wanted)
        parked.refill()
        handle = container.open()
        try:
            guest = await handshake(handle, self._config, self._context, self._shared)
        except (SandboxStartError, SandboxLostError):
            await report.platform(self._runsc, tried=True)  # if runsc itself fails, this says why
            raise
        guest.session.grace_seconds = GRACE_SECONDS
        return guest
