"""RaySandbox: a session on a node of a fleet, used as if it were here.

It is the daemon's client; what it is connected to is the fleet's driver on this machine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.availability import Availability
from atoll.backends.daemon.sandbox import DaemonClientSandbox
from atoll.config import SandboxConfig, fleet_address
from atoll.errors import AtollError, ConfigError
from atoll.files.base import Files
from atoll.files.direct import OpenFile
from atoll.files.types import FileError
from atoll.fleet import lifecycle
from atoll.policy import Capability, Isolation
from atoll.wire import blobs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.backends.daemon.connection import DaemonConnection
    from atoll.wire.peer import Reply

    Ask = Callable[[str, dict[str, Any], list[int]], Awaitable[Reply]]


_ERRNO = {
    FileError.FILE_NOT_FOUND: errno.ENOENT,
    FileError.PERMISSION_DENIED: errno.EACCES,
    FileError.IS_DIRECTORY: errno.EISDIR,
    FileError.TOO_LARGE: errno.EFBIG,
}


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
            hint = "Type: atoll fleet start"
            return Availability(usable=False, reason=str(exc), hint=hint)
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


class FleetFiles(Files):
    """Sends operations to the session's node; contents travel beside them."""

    backend = "ray"

    def __init__(self, ask: Ask) -> None:
        self._send = ask

    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        given = dict(params)
        data = given.pop("data", None)
        fds = [] if data is None else [blobs.write(data)]
        reply = await self._send("files", {"operation": operation, "params": given}, fds)
        answer: dict[str, Any] = reply.value
        if reply.passed_fds:
            answer["data"] = blobs.read(reply.passed_fds.take())
        return answer

    async def open_file(self, path: str) -> OpenFile:
        """Return a copy of a file, to read parts of it; OSError says why it cannot be read."""
        (found,) = await self.download([path])
        if found.content is None:
            code = _ERRNO.get(found.error, errno.EINVAL) if found.error else errno.EINVAL
            raise OSError(code, str(found.error))
        content: bytes = found.content
        digest = (await asyncio.to_thread(hashlib.sha256, content)).hexdigest()
        return OpenFile(blobs.write(content), len(content), digest[:32])
