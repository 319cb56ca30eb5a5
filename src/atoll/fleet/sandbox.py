"""RaySandbox: a session on a node of a fleet, used as if it were here.

It is the daemon's client; what it is connected to is the fleet's driver on this machine.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from atoll import extras
from atoll.backends.daemon.sandbox import DaemonClientSandbox
from atoll.config import SandboxConfig, fleet_address
from atoll.errors import AtollError, ConfigError
from atoll.fleet import lifecycle
from atoll.fleet.files import FleetFiles
from atoll.policy import Capability, Isolation
from atoll.sandbox.availability import Availability

if TYPE_CHECKING:
    from atoll.backends.daemon.connection import DaemonConnection
    from atoll.files.base import Files
    from atoll.rpc.connection import Reply


class RaySandbox(DaemonClientSandbox):
    """A sandbox in the fleet at `url`. With `session`, initialize() takes that session over."""

    backend: ClassVar[str] = "ray"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {
        Capability.HOST_FOLDER,
        Capability.INTERPRETER,
    }

    def __init__(self, config: SandboxConfig | None = None, *, session: str | None = None) -> None:
        super().__init__(config or SandboxConfig(backend="ray"))
        if self._config.workspace is not None or self._config.policy.mounts:
            raise ConfigError("a fleet's sandbox sees no folders of this machine: upload files")
        if self._config.python is not None:
            raise ConfigError("a fleet's sandbox has its node's Python: leave `python` out")
        self.session = session
        """The session's name in the fleet: another process can take it over by this."""

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:
        """Whether a fleet can be joined, and how strong its sandboxes are."""
        try:
            address = fleet_address(config.url)
            facts = await lifecycle.ask(address)
        except AtollError as exc:
            if find_spec("ray") is None:  # `atoll fleet start` would be refused
                reason, hint = "a fleet needs the extra `ray`", f"{extras.hint('ray')}, then: "
            else:
                reason, hint = str(exc), "Type: "
            return Availability(usable=False, reason=reason, hint=f"{hint}atoll fleet start")
        if facts.get("isolation") not in tuple(map(str, Isolation)):
            reason = str(facts.get("reason") or "no node takes sessions")
            return Availability(usable=False, reason=reason, hint="atoll fleet status")
        return Availability(
            usable=True,
            isolation=Isolation.parse(facts["isolation"]),
            limits={"all": "as on the fleet's nodes"},
            details={"fleet": address, "nodes": str(len(facts["nodes"]))},
        )

    @cached_property
    def files(self) -> Files:
        """The session's files; usable while a cell runs."""
        return FleetFiles(self._call).reach_by(self.shell)

    async def fork_with(self, config: SandboxConfig) -> RaySandbox:
        """Return a live clone that calls the host functions of `config`."""
        twin = RaySandbox(self._for_fleet(config))
        await self._fork_into(twin)
        return twin

    @property
    def cut_off(self) -> bool:
        """Whether its driver has ended: the session can be taken over, but not through this."""
        return self._connection is None or bool(self._connection.peer.ended)

    async def freeze(self) -> None:
        """Stop all that the guest runs until `thaw`; what is not saved yet is saved before."""
        await self._call("pause", {})

    async def thaw(self) -> None:
        """Let the guest run again."""
        await self._call("resume", {})

    async def detach(self) -> None:
        """Part from the session, which is committed: `Fleet.attach` takes it over by its name."""
        if self._connection is not None and self._session:
            self._connection.peer.notify("leave", {"session": self._session})
        await super().detach()

    def _for_fleet(self, config: SandboxConfig) -> SandboxConfig:
        own = self._config
        return dataclasses.replace(
            config, backend="ray", url=own.url, durability=own.durability,
            auto_recover=own.auto_recover,
        )  # fmt: skip

    async def _connect(self) -> DaemonConnection:
        return await lifecycle.connection(fleet_address(self._config.url))

    def _sibling(self) -> RaySandbox:
        return RaySandbox(self._config)

    def _opening(self) -> dict[str, Any]:
        given = {"durability": self._config.durability, "auto_recover": self._config.auto_recover}
        return {**given, "fleet_session": self.session}

    def _adopt(self, answer: Reply) -> None:
        super()._adopt(answer)
        self.session = answer.value.get("fleet_session", self.session)
