"""A driver's links to the nodes, and the choice of a node for a session."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Any

from atoll.errors import BusyError, FleetError
from atoll.fleet import cluster
from atoll.fleet.link import KEEP_SECONDS, InOrder
from atoll.fleet.peer import Gathering, MessagePeer

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.fleet.cluster import NodeRow
    from atoll.fleet.peer import Hear, Message, Serve

REFRESH_SECONDS = 0.5
START_SECONDS = 120.0
"""What a node may take to warm its pool."""
RETRY_SECONDS = 1.0
CONTEXT_BONUS = 0.05
"""Share of its places by which a node that has a session's context may be fuller than others."""
_LOG = logging.getLogger("atoll.fleet")


class DriverLink:
    """One node, as a driver sees it: messages both ways, its load, whether it is there."""

    def __init__(
        self, row: NodeRow, actor: Any, serve: Serve, hear: Hear,
        on_end: Callable[[DriverLink, str], None],
    ) -> None:  # fmt: skip
        self.row, self.actor, self._on_end = row, actor, on_end
        self.peer = MessagePeer(serve, hear, self._on_post)
        self._received = InOrder(self.peer.deliver)
        self._driver = secrets.token_hex(8)
        self._number = self._waiting = 0
        self._gathering = Gathering(self._flush)
        self._tasks: set[asyncio.Task[None]] = set()
        self.facts: dict[str, Any] = {}
        self.own = self._others = 0
        """Sessions of this driver that are there or are being opened; those of other drivers."""

    @property
    def load(self) -> float:
        """Share of the node's places that are taken; 1 if it takes no more."""
        if self.facts.get("draining"):
            return 1.0
        return float((self._others + self.own) / self.facts["capacity"])

    async def start(self) -> None:
        """Wait until the node is ready, and begin to exchange messages."""
        async with asyncio.timeout(START_SECONDS):
            self.facts = await self.actor.start.remote()
        self._send([])

    def end(self, why: str) -> None:
        """Give the node up: calls that wait fail."""
        if not self.peer.ended:
            self.peer.end(f"the node {self.row.name} was lost: {why}")
            self._on_end(self, why)

    def _on_post(self) -> None:
        self._gathering.plan(self.peer.busy)

    def _flush(self) -> None:
        if self.peer.outgoing:
            self._send(self.peer.take())

    def _send(self, messages: list[Message]) -> None:
        self._number += 1
        self._waiting += 1
        task = asyncio.get_running_loop().create_task(self._exchange(self._number, messages))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _exchange(self, number: int, messages: list[Message]) -> None:
        try:
            async with asyncio.timeout(3 * KEEP_SECONDS):
                asked = self.actor.exchange.remote(self._driver, number, messages)
                got, batch, facts = await asked
        except asyncio.CancelledError:
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, the node cannot be spoken to
            self.end(_reason(exc))
            return
        finally:
            self._waiting -= 1
        if self.peer.ended:
            return
        if facts is not None:
            self.facts, self._others = facts, max(0, facts["sessions"] - self.own)
        self._received.put(got, batch)
        if self._waiting == 0:
            self._send([])


class Router:
    """Knows the nodes, and picks one for a session."""

    def __init__(
        self, settings: str, serve: Serve, hear: Hear, on_loss: Callable[[DriverLink], None]
    ) -> None:
        self._settings, self._serve, self._hear, self._on_loss = settings, serve, hear, on_loss
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self.links: dict[str, DriverLink] = {}
        self.refused: dict[str, str] = {}
        """Nodes that cannot be used, by name, and why."""
        self.problem = ""

    async def watch(self) -> None:
        """Follow nodes that join and leave, for ever."""
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Connect to nodes that are new; give up those that Ray says are dead."""
        try:
            async with asyncio.timeout(10):
                rows = {one.ident: one for one in await asyncio.to_thread(cluster.nodes)}
        except Exception as exc:  # noqa: BLE001 - the head does not answer: go on with what is known
            self.problem = f"the fleet's head does not answer: {_reason(exc)}"
            return
        self.problem = ""
        for ident, link in list(self.links.items()):
            if ident not in rows:
                link.end("Ray says that it is dead")
        for ident, row in rows.items():
            if ident not in self.links and ident not in self._connecting:
                self._connecting[ident] = asyncio.ensure_future(self._connect(row))

    async def ready(self) -> None:
        """Wait until the nodes that are known by now can be used, or have failed."""
        await self.refresh()
        while self._connecting and not self.links:
            await asyncio.wait(self._connecting.values(), return_when=asyncio.FIRST_COMPLETED)

    def pick(self, digest: str | None = None, without: frozenset[str] = frozenset()) -> DriverLink:
        """Return the least loaded node; one that has the context may be a bit more loaded."""
        usable = [
            one for one in self.links.values() if one.load < 1 and one.row.ident not in without
        ]
        if not usable:
            raise self._full()

        def cost(link: DriverLink) -> float:
            return link.load - (CONTEXT_BONUS if digest in link.facts["contexts"] else 0)

        return min(usable, key=cost)

    def _full(self) -> BusyError:
        if not self.links:
            refused = "; ".join(f"{name}: {why}" for name, why in self.refused.items())
            text = f"the fleet has no node that takes sessions. {self.problem} {refused}"
            full = BusyError(" ".join(text.split()))
        else:
            full = BusyError(
                f"all {len(self.links)} nodes of the fleet are full: try again in "
                f"{RETRY_SECONDS:g} s, or add a node"
            )
        vars(full)["retry_after"] = RETRY_SECONDS
        return full

    async def _connect(self, row: NodeRow) -> None:
        try:
            await self._try_to_connect(row)
        finally:
            self._connecting.pop(row.ident, None)

    async def _try_to_connect(self, row: NodeRow) -> None:
        try:
            actor = await asyncio.to_thread(cluster.node_actor, row, self._settings)
            link = DriverLink(row, actor, self._serve, self._hear, self._lost)
            await link.start()
        except Exception as exc:  # noqa: BLE001 - one node that cannot be used leaves the others
            self.refused[row.name] = _reason(exc)
            _LOG.warning("the node %s cannot be used: %s", row.name, self.refused[row.name])
            await asyncio.sleep(RETRY_SECONDS)
            return
        self.refused.pop(row.name, None)
        self.links[row.ident] = link
        _LOG.info("the node %s takes sessions", row.name)

    def _lost(self, link: DriverLink, why: str) -> None:
        self.links.pop(link.row.ident, None)
        _LOG.warning("the node %s was lost: %s", link.row.name, why)
        self._on_loss(link)


def _reason(exc: BaseException) -> str:
    """Return one line: an error of Ray's has a page of them, the last of which tells most."""
    cause = getattr(exc, "cause", None)
    if isinstance(exc, FleetError) or isinstance(cause, Exception):
        return str(cause or exc)[:400]
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text[:300]}" if text else type(exc).__name__
