"""What a backend is to its sandbox: it finds out what a guest needs here, and starts guests."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.errors import ConfigError, UnsupportedError
from atoll.launch.handshake import START_SECONDS
from atoll.policy import Capability, Isolation

if TYPE_CHECKING:
    from collections.abc import Collection

    from atoll.config import SandboxConfig
    from atoll.errors import AtollError
    from atoll.guest.shared.messages import StateParams
    from atoll.launch.handshake import RunningGuest
    from atoll.sandbox.context import Context
    from atoll.sandbox.verbs import Commit
    from atoll.types import CommittedImage, SandboxResult


MAX_STARTS = 4
PAUSE_SECONDS = 0.05
"""In which the loss of a killed zygote becomes known."""


@dataclass(slots=True)
class Starts:
    """The starts of one call: MAX_STARTS, and none after START_SECONDS.

    All that may start a guest again takes part in one count: the start itself, and a first cell
    that the guest did not live to read.
    """

    left: int = MAX_STARTS - 1
    begun: float = field(default_factory=time.monotonic)

    async def again(self) -> bool:
        """Return whether another guest may be started, after a pause."""
        if not self.left or time.monotonic() > self.begun + START_SECONDS:
            return False
        self.left -= 1
        await asyncio.sleep(PAUSE_SECONDS)
        return True


class Launcher(ABC):
    """Starts the guests of one sandbox, one after the other."""

    backend: ClassVar[str]
    """Its name, for errors."""
    own_guard: ClassVar[str | None] = None
    """The guard of a backend that has one of its own."""
    hidden_folders: ClassVar[frozenset[str]] = frozenset()
    """Of the folders that a jail shows to the host: those that the guest does not see."""
    measures: ClassVar[bool] = False
    """Whether the backend has numbers of its own for a result: see `measured`."""

    cold_start: str | None = None
    """Why a pool started the guest instead of forking it off a zygote; None if it was forked."""
    image_digest: str | None = None
    """The digest of the image that is the guest's root; None without one."""
    no_cells: AtollError | None = None
    """The error of cells, if the guest has no Python to run them."""

    def __init__(self, config: SandboxConfig) -> None:
        self.config, self.level = config, Isolation.NONE

    @abstractmethod
    async def prepare(self) -> Isolation:
        """Find out what a guest needs, and return its isolation level."""

    @abstractmethod
    async def launch(
        self, config: SandboxConfig, context: Any, shared: Context | None
    ) -> RunningGuest:
        """Start a guest with the present tools in `config`; nothing is left behind if it fails."""

    @property
    @abstractmethod
    def version(self) -> tuple[int, ...]:
        """The version of the guest's Python; a state is restored by the same one only."""

    @abstractmethod
    def state_params(self) -> StateParams:
        """Return what a guest needs to save or restore; UnsupportedError if it cannot."""

    @property
    def preloaded(self) -> str | None:
        """The tier of libraries that the guest started with; None without a tier."""
        return None

    def check_network(self, capabilities: Collection[Capability]) -> None:
        """Raise ConfigError if the guest could pass by its network policy, or not use it."""
        if Capability.NETWORK not in capabilities and Capability.FETCH not in capabilities:
            problem = f"backend {self.backend!r} cannot hold a network policy: use 'native'"
            raise ConfigError(f"{problem} or 'daemon'")
        if Capability.NETWORK in capabilities and self.level < Isolation.JAILED:
            problem = f"a network policy needs a jail; this sandbox is only {self.level}"
            raise ConfigError(f"{problem}: atoll doctor says why")

    def process_env(self) -> dict[str, str]:
        """Return the variables of a process beside the guest; UnsupportedError if it has none."""
        raise UnsupportedError(self.backend, Capability.PROCESSES)

    def measured(self, guest: RunningGuest, result: SandboxResult) -> SandboxResult:  # noqa: ARG002
        """Return the result with the numbers that the backend itself has measured."""
        return result

    async def commit(self, guest: RunningGuest, request: Commit) -> CommittedImage:  # noqa: ARG002
        """Commit the guest's session as an image; UnsupportedError if it has none."""
        raise UnsupportedError(self.backend, "commit a session as an image")

    def close(self) -> None:  # noqa: B027 - some have nothing to release
        """Release what guests have used, after the last one has ended."""
