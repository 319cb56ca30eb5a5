"""RestrictedSandbox: a session in a plain process behind a guard. Not for hostile code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.backends.restricted.launch import launch
from atoll.errors import IsolationError, UnsupportedError
from atoll.files.base import NoFiles
from atoll.guest.core.memory import MARGIN
from atoll.launch.sandbox import GuestSandbox
from atoll.policy import Capability, Isolation
from atoll.sandbox.availability import Availability

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.files.base import Files
    from atoll.launch.handshake import RunningGuest

LIMITS = {
    "time": "interrupt, then kill",
    "memory": "RLIMIT_DATA",
    "cpu": "/proc, polled",
    "output": "cut by the host",
    "files, processes": "code has no way to make any",
}


class RestrictedSandbox(GuestSandbox):
    """Code that passed the guard, with safe built-ins, in a child process without a jail."""

    backend: ClassVar[str] = "restricted"
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
    runtime_memory: ClassVar[int] = MARGIN
    _own_guard: ClassVar[str | None] = "restricted"

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:  # noqa: ARG003 - as asked
        """Return that it is available: it runs wherever Python does."""
        return Availability(
            usable=True,
            isolation=Isolation.GUARDED,
            reason="a guard is a seat belt, not a wall",
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

    async def _prepare(self) -> Isolation:
        config = self._config
        least = config.min_isolation
        if least is not None and least > Isolation.GUARDED:
            raise IsolationError(self.backend, f"{least} was asked for, and it is only guarded")
        if config.workspace is not None or self.policy.mounts:
            raise UnsupportedError(self.backend, Capability.HOST_FOLDER)
        if config.python is not None:
            raise UnsupportedError(self.backend, Capability.INTERPRETER)
        if self.policy.env:
            raise UnsupportedError(self.backend, "show environment variables")
        return Isolation.GUARDED

    async def _launch(self) -> RunningGuest:
        return await launch(self._config, self._context, self._shared)

    @property
    def _version(self) -> tuple[int, ...]:
        return sys.version_info[:3]

    def _state_params(self) -> dict[str, Any]:
        raise UnsupportedError(self.backend, Capability.SAVE)
