"""RestrictedSandbox: a session behind a guard, in a jail where there is one."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.concurrency import boot
from atoll.errors import BackendUnavailableError, IsolationError, UnsupportedError
from atoll.files.base import NoFiles
from atoll.jail.measure import host_facts, kernel_calls, probe
from atoll.jail.supervisor.spec import GUEST_CODE, Bind, JailSpec
from atoll.launch import interpreter
from atoll.launch.guest_handle import limits_of, start_guest
from atoll.launch.handshake import handshake
from atoll.launch.launcher import Launcher
from atoll.launch.sandbox import GuestSandbox
from atoll.policy import Capability, Isolation
from atoll.sandbox.availability import Availability

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.files.base import Files
    from atoll.guest.shared.messages import StateParams
    from atoll.launch.handshake import RunningGuest
    from atoll.sandbox.context import Context

LIMITS = {
    "time": "interrupt, then kill",
    "memory": "RLIMIT_DATA",
    "cpu": "/proc, polled",
    "output": "cut by the host",
    "files, processes": "code has no way to make any",
}
LEAST_OPEN_FILES = 128
_BOOT = boot.code("atoll.backends.restricted.worker")


class RestrictedLauncher(Launcher):
    """Starts a worker in the strongest jail that this host has; else its checks have to hold."""

    backend: ClassVar[str] = "restricted"
    own_guard: ClassVar[str | None] = "restricted"

    async def prepare(self) -> Isolation:
        """Refuse what the worker cannot have, and return the level that this host has."""
        config, self.level = self.config, await _level()
        least = config.min_isolation
        if least is not None and least > self.level:
            have = f"{least} was asked for, and it is only {self.level}"
            raise IsolationError(self.backend, have)
        if config.workspace is not None or config.policy.mounts:
            raise UnsupportedError(self.backend, Capability.HOST_FOLDER)
        if config.python is not None:
            raise UnsupportedError(self.backend, Capability.INTERPRETER)
        if config.policy.env:
            raise UnsupportedError(self.backend, "show environment variables")
        return self.level

    async def launch(
        self, config: SandboxConfig, context: Any, shared: Context | None
    ) -> RunningGuest:
        """Start a worker."""
        passed = [shared.fd] if shared else []
        handle = start_guest(self._spec(shared.size if shared else 0), *passed)
        return await handshake(handle, config, context, shared)

    def _spec(self, context_size: int) -> JailSpec:
        jailed = self.level >= Isolation.JAILED
        python = interpreter.resolve(None)
        root = GUEST_CODE if jailed else boot.ROOT
        # Without a root of its own, the importer lists the folder that it finds the package in.
        package = f"{boot.ROOT}/atoll" if jailed else boot.ROOT
        limits = limits_of(self.config.policy, context_size)
        return JailSpec(
            jailed=jailed,
            must_confine=self.level >= Isolation.CONFINED,
            argv=(python.path, "-I", "-X", "utf8", "-c", _BOOT, root),
            env=interpreter.environment(python, jailed=jailed),
            binds=(
                Bind(source=package, target=f"{GUEST_CODE}/atoll"),
                *interpreter.python_binds(python),
            ),
            workspace=None,
            limits=replace(
                limits, file_size=0, open_files=max(limits.open_files, LEAST_OPEN_FILES)
            ),
        )

    @property
    def version(self) -> tuple[int, ...]:
        """The version of this process."""
        return sys.version_info[:3]

    def state_params(self) -> StateParams:
        """Raise UnsupportedError."""
        raise UnsupportedError(self.backend, Capability.SAVE)


class RestrictedSandbox(GuestSandbox):
    """Code that passed the guard, with safe built-ins, in a child process."""

    backend: ClassVar[str] = RestrictedLauncher.backend
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.STATE,
            Capability.STREAMING,
            Capability.CANCEL,
            Capability.BRIDGE,
            Capability.SHARED_CONTEXT,
            Capability.LIMIT_TIME,
            Capability.LIMIT_MEMORY,
            Capability.LIMIT_CPU,
            Capability.LIMIT_OUTPUT,
        }
    )
    launcher: ClassVar[type[Launcher]] = RestrictedLauncher

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:  # noqa: ARG003 - as asked
        """Return that it is available, unless the kernel lacks what any child process needs."""
        try:
            level = await _level()
        except BackendUnavailableError as exc:
            return Availability(usable=False, reason=exc.reason, hint=exc.hint)
        return Availability(
            usable=True,
            isolation=level,
            reason="" if level >= Isolation.JAILED else "a guard is a seat belt, not a wall",
            limits=LIMITS,
            details={"python": sys.executable},
        )

    @property
    def files(self) -> Files:
        """Not supported: using them is an UnsupportedError."""
        return NoFiles(self.backend, self._require_open)

    async def save(self) -> bytes:
        """Not supported: raise UnsupportedError."""
        raise self._unsupported(Capability.SAVE)


async def _level() -> Isolation:
    """Return the level; BackendUnavailableError if the kernel lacks what a child process needs."""
    if lacking := kernel_calls.missing(kernel_calls.ALWAYS):
        hint = host_facts.read().hint()
        raise BackendUnavailableError("restricted", kernel_calls.in_words(lacking), hint)
    return max((await probe.host()).level, Isolation.GUARDED)
