"""A fleet as a user's process sees it; its sandboxes come from create_sandbox(backend="ray")."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from atoll.config import SandboxConfig, fleet_address
from atoll.errors import AtollError, BusyError, FleetError
from atoll.fleet import lifecycle
from atoll.fleet.sandbox import RaySandbox
from atoll.guest.shared import values
from atoll.policy import check_positive
from atoll.sandbox.base import check_code
from atoll.sandbox.wire import blobs, results
from atoll.sandbox.wire.options import to_wire as options_to_wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from atoll.backends.daemon.connection import DaemonConnection
    from atoll.rpc.connection import Reply
    from atoll.types import SandboxResult

BUSY_SECONDS = 0.2
LONGEST_BUSY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResult:
    """What became of one item of `Fleet.map`."""

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
        async for one in self.each(code, given, **options):
            done.append(one)
            if on_progress is not None:
                on_progress(len(done), len(given))
        return sorted(done, key=lambda one: one.index)

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
        asked = {"code": code, "config": options_to_wire(options.get("config") or SandboxConfig())}
        waiting = iter(enumerate(items))
        running: set[asyncio.Task[ItemResult]] = set()
        try:
            while True:
                for index, item in itertools.islice(waiting, concurrency - len(running)):
                    running.add(asyncio.ensure_future(self._one(asked, index, item, attempts)))
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        finally:
            for task in running:
                task.cancel()

    async def _one(self, asked: dict[str, Any], index: int, item: Any, attempts: int) -> ItemResult:
        attempt, pause = 1, BUSY_SECONDS
        while True:
            try:
                reply = await self._call("run", {**asked, "item": values.encode(item)})
                beside = blobs.read(reply.passed_fds.take()) if reply.passed_fds else b""
                result = results.from_wire(reply.value["result"], beside)
                return ItemResult(index=index, item=item, result=result, attempts=attempt)
            except BusyError:  # nothing ran: it does not count
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_BUSY_SECONDS)
            except AtollError as exc:
                if not exc.retryable or attempt == attempts:
                    return ItemResult(index=index, item=item, error=exc, attempts=attempt)
                attempt += 1

    async def _call(self, method: str, params: dict[str, Any]) -> Reply:
        if self._connection is None:
            raise FleetError("the fleet is not connected: use it in `async with`")
        return await self._connection.call(method, params)

    async def __aenter__(self) -> Self:
        self._connection = await lifecycle.connection(self.address)
        self._name = self._connection.hold()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._connection is not None:
            self._connection.let_go(self._name)
            self._connection = None
