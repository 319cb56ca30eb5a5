"""NativePythonSandbox: a session in a jailed CPython process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from atoll.backends._interpreter import InterpreterLauncher
from atoll.backends.native.launch import launch
from atoll.errors import UnsupportedError
from atoll.jail.measure import probe
from atoll.launch import interpreter
from atoll.launch.sandbox import GuestSandbox
from atoll.policy import Capability, Isolation

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.launch.handshake import RunningGuest
    from atoll.launch.launcher import Launcher
    from atoll.sandbox.availability import Availability
    from atoll.sandbox.context import Context


class NativeLauncher(InterpreterLauncher):
    """Starts a CPython in a jail of its own."""

    backend: ClassVar[str] = "native"

    async def prepare(self) -> Isolation:
        """Find the interpreter, and probe what this host can isolate and count."""
        await self.find_interpreter()
        self.level = await probe.level_for(self.backend, self.config)
        await probe.require_counters(self.backend, self.config, self.level)
        if self.config.policy.folders and self.level < Isolation.JAILED:
            raise UnsupportedError(self.backend, f"make folders where it is only {self.level}")
        return self.level

    async def launch(
        self, config: SandboxConfig, context: Any, shared: Context | None
    ) -> RunningGuest:
        """Start a guest. A pool overrides this."""
        return await launch(config, self.python, self.level, context, shared)


class NativePythonSandbox(GuestSandbox):
    """CPython in a jail: namespaces, Landlock, seccomp, limits; no root and no binary needed."""

    backend: ClassVar[str] = NativeLauncher.backend
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {Capability.FORK}
    launcher: ClassVar[type[Launcher]] = NativeLauncher

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:
        """Whether this backend can run here, and how strongly."""
        return await probe.availability(lambda: interpreter.resolve(config.python))
