"""NativePythonSandbox: a session in a jailed CPython process."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.backends._interpreter import InterpreterLauncher
from atoll.errors import UnsupportedError
from atoll.jail.measure import probe
from atoll.jail.supervisor.spec import GUEST_CODE, JailSpec
from atoll.launch import boot, interpreter
from atoll.launch.guest_handle import limits_of, start_guest
from atoll.launch.sandbox import GuestSandbox
from atoll.policy import Capability, Isolation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.config import SandboxConfig
    from atoll.jail.supervisor.spec import Bind
    from atoll.launch.handshake import RunningGuest
    from atoll.launch.interpreter import Interpreter
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
        """Start a guest; SandboxStartError if that fails. A pool overrides this."""
        handle = start_guest(self.spec(config, shared.size if shared else 0))
        return await self.greet(handle, config, context=context, shared=shared)

    def spec(self, config: SandboxConfig, context_size: int) -> JailSpec:
        """Return the request to the supervisor."""
        jailed, policy = self.level >= Isolation.JAILED, config.policy
        argv, env, binds = _interpreter_parts(self.python, jailed)
        return JailSpec(
            jailed=jailed,
            argv=argv,
            env={**env, **policy.env},
            binds=(*binds, *boot.mount_binds(policy)) if policy.mounts else binds,
            workspace=str(config.workspace) if config.workspace else None,
            limits=limits_of(policy, context_size),
            root=self.python.root,
        )


@functools.lru_cache(maxsize=64)
def _interpreter_parts(
    python: Interpreter,
    jailed: bool,  # noqa: FBT001 - as it is cached
) -> tuple[tuple[str, ...], Mapping[str, str], tuple[Bind, ...]]:
    """Return command, environment and host paths of an interpreter: the same for all its guests."""
    root = GUEST_CODE if jailed else os.path.dirname(interpreter.GUEST_FOLDER)
    code = interpreter.GUEST_FOLDER if jailed else root  # the importer lists the folder it is in
    env = interpreter.environment(python, jailed=jailed)
    return boot.command(python, root, jailed=jailed), env, boot.binds(python, code)


class NativePythonSandbox(GuestSandbox):
    """CPython in a jail: namespaces, Landlock, seccomp, limits; no root and no binary needed."""

    backend: ClassVar[str] = NativeLauncher.backend
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {Capability.FORK}
    launcher: ClassVar[type[Launcher]] = NativeLauncher

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:
        """Whether this backend can run here, and how strongly."""
        return await probe.availability(lambda: interpreter.resolve(config.python))
