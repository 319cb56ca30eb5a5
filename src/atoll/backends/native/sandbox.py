"""NativePythonSandbox: a session in a jailed CPython process."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atoll.backends._interpreter_sandbox import InterpreterSandbox
from atoll.backends.native.launch import launch
from atoll.jail.measure import probe
from atoll.launch import interpreter
from atoll.policy import Capability

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.launch.handshake import RunningGuest
    from atoll.policy import Isolation
    from atoll.sandbox.availability import Availability


class NativePythonSandbox(InterpreterSandbox):
    """CPython in a jail: namespaces, Landlock, seccomp, limits; no root and no binary needed."""

    backend: ClassVar[str] = "native"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {Capability.FORK}

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:
        """Whether this backend can run here, and how strongly."""
        return await probe.availability(lambda: interpreter.resolve(config.python))

    async def _prepare(self) -> Isolation:
        await self._find_interpreter()
        level = await probe.level_for(self.backend, self._config)
        await probe.require_counters(self.backend, self._config, level)
        return level

    async def _launch(self) -> RunningGuest:
        """A new guest. A pool overrides this."""
        return await launch(self._config, self._python, self._level, self._context, self._shared)
