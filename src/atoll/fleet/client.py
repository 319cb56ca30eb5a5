"""A fleet as a user's process sees it: its sandboxes, and the fleet itself.

A RaySandbox is the daemon's client; what it is connected to is the fleet's driver on this machine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, Unpack

from atoll import extras
from atoll.backends.daemon.sandbox import DaemonClientSandbox
from atoll.concurrency.background import Background
from atoll.config import SandboxConfig, fleet_address
from atoll.errors import AtollError, BusyError, ConfigError, FleetError, UnsupportedError
from atoll.fleet import lifecycle, streams
from atoll.fleet.files import FleetFiles
from atoll.fleet.messages import RunOnce
from atoll.guest.shared import values
from atoll.policy import Capability, Isolation, check_positive
from atoll.sandbox import verbs
from atoll.sandbox.availability import Availability
from atoll.sandbox.base import check_code, check_port
from atoll.sandbox.wire.options import to_wire as options_to_wire

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Iterable

    from atoll.backends.daemon.connection import DaemonConnection
    from atoll.files.base import Files
    from atoll.rpc.connection import Params
    from atoll.rpc.passed_fds import Reply
    from atoll.sandbox.wire.answers import Opened
    from atoll.types import CommittedImage, SandboxResult

BUSY_SECONDS = 0.2
LONGEST_BUSY_SECONDS = 5.0


class RaySandbox(DaemonClientSandbox):
    """A sandbox in the fleet at `url`. With `session`, initialize() takes that session over."""

    backend: ClassVar[str] = "ray"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {
        Capability.FOLDERS,
        Capability.HOST_FOLDER,
        Capability.INTERPRETER,
    }

    def __init__(self, config: SandboxConfig | None = None, *, session: str | None = None) -> None:
        super().__init__(config or SandboxConfig(backend="ray"))
        if self._config.workspace is not None or self._config.policy.mounts:
            raise ConfigError("a fleet's sandbox sees no folders of this machine: upload files")
        if self._config.python is not None:
            raise ConfigError("a fleet's sandbox has its node's Python: leave `python` out")
        self._relays = Background()
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

    async def connect(self, port: int) -> socket.socket:
        """Return a connection with a server on the guest's loopback; PortError without one."""
        self._require_open()
        made, relay = await streams.connect(self._call, check_port(port))
        self._relays.spawn(relay)
        return made

    async def _close_forwards(self) -> None:
        await super()._close_forwards()
        self._relays.cancel()
        await self._relays.wait()

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
        """Stop all that the guest runs until `thaw`; unsaved changes are saved before."""
        await self._send(verbs.Pause())

    async def thaw(self) -> None:
        """Let the guest run again."""
        await self._send(verbs.Resume())

    async def commit(
        self, target: str, *, push: bool = False, compression: str = "gzip"
    ) -> CommittedImage:
        """Make an image of the session; a node's own store is of no use to others, so push it."""
        if not push:
            what = "commit an image without push=True, which other nodes can reach"
            raise UnsupportedError(self.backend, what)
        return await super().commit(target, push=push, compression=compression)

    async def detach(self) -> None:
        """Part from the session, which is committed: `Fleet.attach` takes it over by its name."""
        if self._connection is not None and self._session:
            self._connection.peer.notify("leave", {"session": self._session})
        await super().detach()

    def _for_fleet(self, config: SandboxConfig) -> SandboxConfig:
        own = self._config
        return dataclasses.replace(
            config,
            backend="ray",
            url=own.url,
            durability=own.durability,
            auto_recover=own.auto_recover,
        )

    async def _connect(self) -> DaemonConnection:
        return await lifecycle.connection(fleet_address(self._config.url))

    def _sibling(self) -> RaySandbox:
        return RaySandbox(self._config)

    def _opening(self) -> verbs.Initialize:
        return dataclasses.replace(
            super()._opening(),
            durability=self._config.durability,
            auto_recover=self._config.auto_recover,
            fleet_session=self.session,
        )

    def _adopt(self, opened: Opened) -> None:
        super()._adopt(opened)
        self.session = opened.fleet_session or self.session


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResult:
    """The result of one item of `Fleet.map`."""

    index: int
    item: Any
    result: SandboxResult | None = None
    error: AtollError | None = None
    """Why there is no result, after all attempts."""
    attempts: int = 1


class MapOptions(TypedDict, total=False):
    """Options of `Fleet.map` and `Fleet.each`."""

    config: SandboxConfig | None
    """What each sandbox is like."""
    concurrency: int
    """Items at one time: 64."""
    attempts: int
    """How often an item is tried whose node is lost: 3."""


class Fleet:
    """A connection to a fleet, through this machine's driver. Use it in `async with`."""

    def __init__(self, address: str | None = None) -> None:
        self.address = fleet_address(address)
        self._connection: DaemonConnection | None = None
        self._name = ""

    @classmethod
    def connect(cls, address: str | None = None) -> Self:
        """Return a fleet that `async with` connects to: HOST:PORT of its head, or ATOLL_FLEET."""
        return cls(address)

    async def status(self) -> dict[str, Any]:
        """Return nodes, sessions and load, as `atoll fleet status --json` prints them."""
        return dict((await self._call("stats", {})).value)

    async def drain(self, node: str, *, draining: bool = True) -> dict[str, Any]:
        """Let a node take no more sessions, and move those that this driver has there."""
        return dict((await self._call("drain", {"node": node, "draining": draining})).value)

    async def attach(self, session: str, config: SandboxConfig | None = None) -> RaySandbox:
        """Take over a session with a state from its process, by its name: `RaySandbox.session`."""
        given = config or SandboxConfig(backend="ray", url=self.address, durability="cell")
        box = RaySandbox(given, session=session)
        await box.initialize(given.context)
        return box

    async def map(
        self,
        code: str,
        items: Iterable[Any],
        *,
        on_progress: Callable[[int, int], None] | None = None,
        **options: Unpack[MapOptions],
    ) -> list[ItemResult]:
        """Run code once for each item, as `each` does; return the results in the items' order.

        `on_progress` is called with how many are done, and how many there are.
        """
        given = list(items)
        done: list[ItemResult] = []
        async for result in self.each(code, given, **options):
            done.append(result)
            if on_progress is not None:
                on_progress(len(done), len(given))
        return sorted(done, key=lambda result: result.index)

    async def each(
        self, code: str, items: Iterable[Any], **options: Unpack[MapOptions]
    ) -> AsyncIterator[ItemResult]:
        """Run code once for each item, each in a sandbox of its own; yield results as they come.

        The item is `context` there. An item whose node is lost is tried again, `attempts` times
        in all; a fault of the code is a result. Items are taken as there is room for them.
        """
        check_code(code)
        concurrency, attempts = options.get("concurrency", 64), options.get("attempts", 3)
        check_positive("concurrency", concurrency)
        check_positive("attempts", attempts)
        config = options_to_wire(options.get("config") or SandboxConfig())
        request = RunOnce(code=code, config=config)
        waiting = iter(enumerate(items))
        running: set[asyncio.Task[ItemResult]] = set()
        try:
            while True:
                for index, item in itertools.islice(waiting, concurrency - len(running)):
                    running.add(asyncio.ensure_future(self._run(request, index, item, attempts)))
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        finally:
            for task in running:
                task.cancel()

    async def _run(self, request: RunOnce, index: int, item: Any, attempts: int) -> ItemResult:
        """Run the code for an item, on another node if one is lost."""
        params = dataclasses.replace(request, item=values.encode(item)).params()
        attempt, pause = 1, BUSY_SECONDS
        while True:
            try:
                result = RunOnce.answer.unpack(await self._call("run", params))
                return ItemResult(index=index, item=item, result=result, attempts=attempt)
            except BusyError:  # nothing ran: it does not count
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_BUSY_SECONDS)
            except AtollError as exc:
                if not exc.retryable or attempt == attempts:
                    return ItemResult(index=index, item=item, error=exc, attempts=attempt)
                attempt += 1

    async def _call(self, method: str, params: Params) -> Reply:
        if self._connection is None:
            raise FleetError("the fleet is not connected: use it in `async with`")
        return await self._connection.peer.call(method, params)

    async def __aenter__(self) -> Self:
        self._connection = await lifecycle.connection(self.address)
        self._name = self._connection.hold()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._connection is not None:
            self._connection.let_go(self._name)
            self._connection = None
