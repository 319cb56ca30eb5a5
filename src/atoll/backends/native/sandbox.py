"""NativePythonSandbox: a session in a jailed CPython process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.backends._interpreter import InterpreterLauncher
from atoll.errors import UnsupportedError
from atoll.jail.measure import probe
from atoll.jail.supervisor.spec import GUEST_CODE, JailSpec
from atoll.launch import boot, interpreter
from atoll.launch.guest_handle import limits_of, start_guest
from atoll.launch.handshake import handshake
from atoll.launch.interpreter import GUEST_FOLDER, environment
from atoll.launch.sandbox import GuestSandbox
from atoll.policy import Capability, Isolation

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.launch.handshake import RunningGuest
    from atoll.launch.interpreter import Interpreter
    from atoll.launch.launcher import Launcher
    from atoll.sandbox.availability import Availability
    from atoll.sandbox.context import Context


def make_spec(
    config: SandboxConfig, interpreter: Interpreter, level: Isolation, context_size: int
) -> JailSpec:
    """Return the request to the supervisor."""
    policy, jailed = config.policy, level >= Isolation.JAILED
    root = GUEST_CODE if jailed else os.path.dirname(GUEST_FOLDER)
    code = GUEST_FOLDER if jailed else root  # the importer lists the folder it finds it in
    return JailSpec(
        jailed=jailed,
        argv=boot.command(interpreter, root, jailed=jailed),
        env=environment(interpreter, jailed=jailed) | dict(policy.env),
        binds=boot.binds(policy, interpreter, code),
        workspace=str(config.workspace) if config.workspace else None,
        limits=limits_of(policy, context_size),
        root=interpreter.root,
    )


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
        """Start a guest; SandboxStartError if that fails. A pool overrides this."""
        spec = make_spec(config, self.python, self.level, shared.size if shared else 0)
        return await handshake(start_guest(spec), config, context, shared)


class NativePythonSandbox(GuestSandbox):
    """CPython in a jail: namespaces, Landlock, seccomp, limits; no root and no binary needed."""

    backend: ClassVar[str] = NativeLauncher.backend
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {Capability.FORK}
    launcher: ClassVar[type[Launcher]] = NativeLauncher

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:
        """Whether this backend can run here, and how strongly."""
        return await probe.availability(lambda: interpreter.resolve(config.python))
