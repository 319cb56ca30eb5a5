"""A driver's links to the nodes, and the choice of a node for a session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from atoll.concurrency.background import Background
from atoll.errors import BusyError, FleetError
from atoll.fleet import cluster
from atoll.fleet.link import dial, peer_options
from atoll.fleet.messages import NodeFacts, image_key
from atoll.hosting.pool import tiers
from atoll.rpc.connection import Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atoll.fleet.cluster import NodeRow
    from atoll.fleet.messages import NodeAddress
    from atoll.fleet.settings import FleetSettings
    from atoll.rpc.connection import OnNotification, Params, Serve

REFRESH_SECONDS = 0.5
START_SECONDS = 120.0
"""What a node may take to warm its pool."""
RETRY_SECONDS = 1.0
CONTEXT_BONUS, WARM_BONUS, IMAGE_BONUS = 0.05, 0.03, 0.25
"""Shares of its places by which a node that has a session's context, parked guests of its tier, or
its image, which takes seconds to pull, may be fuller than others."""
_LOG = logging.getLogger("atoll.fleet")


class DriverLink:
    """One node, as a driver sees it: messages both ways, its load, whether it is there."""

    def __init__(
        self,
        row: NodeRow,
        actor: Any,
        serve: Serve,
        on_notification: OnNotification,
        on_end: Callable[[DriverLink], None],
    ) -> None:
        self.row, self.actor, self._on_end = row, actor, on_end
        self._serve, self._others_hear = serve, on_notification
        self.peer: Peer
        """What speaks to the node, once it is connected."""
        self.lost = ""
        """Why the connection has ended; empty while it lives."""
        self.facts = NodeFacts(contexts=[], tiers={})
        self.own = self._others = 0
        """Sessions of this driver that are there or are being opened; those of other drivers."""
        self.opening = 0
        """Guests of this driver that are being started there: parked ones may be taken by them."""

    @property
    def load(self) -> float:
        """Share of the node's places that are taken; 1 if it takes no more."""
        if self.facts.draining:
            return 1.0
        return (self._others + self.own) / self.facts.capacity

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Count a guest that is being started there."""
        self.own += 1
        self.opening += 1
        try:
            yield
        finally:
            self.own -= 1
            self.opening -= 1

    def has_warm(self, tier: str) -> bool:
        """Return whether a guest of this tier is parked there that no other start will take."""
        parked = self.facts.tiers.get(tier, {}).get("parked", 0)
        return bool(parked > self.opening)

    async def start(self) -> None:
        """Wait until the node is ready, and connect to it."""
        async with asyncio.timeout(START_SECONDS):
            node: NodeAddress = await self.actor.start.remote()
        self.facts = node.facts
        sock = await dial((self.row.address, node.port), node.secret)
        options = peer_options(f"the node {self.row.name}")
        self.peer = Peer(sock, self._serve, self._on_notification, self._ended, options)

    def _ended(self, why: str) -> None:
        self.lost = why
        self._on_end(self)

    def _on_notification(self, method: str, params: Params) -> None:
        if method == "facts":
            self.facts = NodeFacts.read(params)
            self._others = max(0, self.facts.sessions - self.own)
        else:
            self._others_hear(method, params)


class Router:
    """Knows the nodes, and picks one for a session."""

    def __init__(
        self,
        settings: FleetSettings,
        serve: Serve,
        on_notification: OnNotification,
        on_loss: Callable[[DriverLink], None],
    ) -> None:
        self._settings, self._serve, self._on_notification, self._on_loss = (
            settings,
            serve,
            on_notification,
            on_loss,
        )
        self._tier = settings.tier or tiers.largest(tiers.TIERS)
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._background = Background(_LOG)
        self.links: dict[str, DriverLink] = {}
        self.refused: dict[str, str] = {}
        """Nodes that cannot be used, by name, and why."""
        self.problem = ""

    async def refresh(self) -> None:
        """Connect to nodes that are new; give up those that Ray says are dead."""
        try:
            async with asyncio.timeout(10):
                rows = {row.ident: row for row in await asyncio.to_thread(cluster.nodes)}
        except Exception as exc:  # noqa: BLE001 - the head does not answer: go on with what is known
            self.problem = f"the fleet's head does not answer: {_reason(exc)}"
            return
        self.problem = ""
        names = {row.name for row in rows.values()}
        self.refused = {name: why for name, why in self.refused.items() if name in names}
        for ident, link in list(self.links.items()):
            if ident not in rows:
                link.peer.end(f"Ray says that the node {link.row.name} is dead")
        for ident, row in rows.items():
            if ident not in self.links and ident not in self._connecting:
                self._connecting[ident] = self._background.spawn(self._connect(row))

    async def ready(self) -> None:
        """Wait until the nodes that are known by now can be used, or have failed."""
        await self.refresh()
        while self._connecting and not self.links:
            await asyncio.wait(self._connecting.values(), return_when=asyncio.FIRST_COMPLETED)

    def pick(
        self,
        digest: str | None = None,
        tier: str | None = None,
        without: frozenset[str] = frozenset(),
        image: str | None = None,
    ) -> DriverLink:
        """Return the least loaded node.

        A node that has the context may be a bit fuller, and so may a node that has parked guests of
        the tier: elsewhere a guest would have to be started. One that has the image may be fuller
        still: elsewhere it would have to be pulled.
        """
        key = None if image is None else image_key(image)
        wanted = tier or self._tier
        usable = [
            link for link in self.links.values() if link.load < 1 and link.row.ident not in without
        ]
        if not usable:
            raise self._full()

        def cost(link: DriverLink) -> float:
            context = CONTEXT_BONUS if digest in link.facts.contexts else 0
            pulled = IMAGE_BONUS if key in link.facts.images else 0
            return link.load - context - pulled - (WARM_BONUS if link.has_warm(wanted) else 0)

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
            actor = await asyncio.to_thread(cluster.node_actor, row, self._settings.to_json())
            link = DriverLink(row, actor, self._serve, self._on_notification, self._lost)
            await link.start()
        except Exception as exc:  # noqa: BLE001 - one node that cannot be used leaves the others
            self.refused[row.name] = _reason(exc)
            _LOG.warning("the node %s cannot be used: %s", row.name, self.refused[row.name])
            await asyncio.sleep(RETRY_SECONDS)
            return
        self.refused.pop(row.name, None)
        self.links[row.ident] = link
        _LOG.info("the node %s takes sessions", row.name)

    def _lost(self, link: DriverLink) -> None:
        self.links.pop(link.row.ident, None)
        _LOG.warning("the node %s was lost: %s", link.row.name, link.lost)
        self._on_loss(link)


def _reason(exc: BaseException) -> str:
    """Return a short text: an error of Ray's is a page long, and its cause says most."""
    cause = getattr(exc, "cause", None)
    if isinstance(exc, FleetError) or isinstance(cause, Exception):
        return str(cause or exc)[:400]
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text[:300]}" if text else type(exc).__name__
