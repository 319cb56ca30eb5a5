"""A session as a driver sees it: where it is, and what becomes of it when its node is lost."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.errors import AtollError, BusyError, SandboxClosedError, SandboxError, SandboxLostError
from atoll.fleet.contexts import MISSING
from atoll.fleet.link import LinkLostError
from atoll.fleet.messages import LeaveNode, OpenSession
from atoll.sandbox import verbs

if TYPE_CHECKING:
    from atoll.fleet.contexts import SharedContext
    from atoll.fleet.log import SessionLog
    from atoll.fleet.router import DriverLink, Router
    from atoll.rpc.blobs import Buffer
    from atoll.rpc.connection import Items, Params, Peer
    from atoll.rpc.passed_fds import PassedFds, Reply

RECOVER_SECONDS = 60.0
"""For how long a session whose node was lost is tried to be opened elsewhere."""
PAUSE_SECONDS = 0.1
_LOG = logging.getLogger("atoll.fleet")


@dataclass(slots=True, kw_only=True)
class OpenRequest:
    """The parameters for opening a session again."""

    config: Params
    durability: str = "none"
    auto_recover: bool = False
    context: Params | None = None
    """A small context, as it is sent; a large one is in `shared`."""
    shared: SharedContext | None = None
    state: Buffer | None = field(default=None, repr=False)


class RoutedSession:
    """Forwards the calls of one session to its node, wherever that is."""

    def __init__(
        self, ident: str, opening: OpenRequest, router: Router, log: SessionLog | None
    ) -> None:
        self.ident, self.opening, self._router, self.log = ident, opening, router, log
        self._link: DriverLink | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._moving = asyncio.Lock()
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._lost = ""
        """Why its node was lost, until a caller has had that error."""
        self._over = False
        self.peer: Peer
        self.name = ""
        """Its client, and the client's name for it."""

    @property
    def link(self) -> DriverLink | None:
        """The node that has it now."""
        return self._link

    def place(self, link: DriverLink | None) -> None:
        """Set the node that has it now: a clone is where its original was."""
        if self._link is not None:
            self._link.own -= 1
        self._link = link
        if link is not None:
            link.own += 1
            if link.peer.ended:
                self.lose(link)

    async def open(self, *, claim: bool = False) -> Reply:
        """Open it on a node; with `claim`, take it over from its owner."""
        without: frozenset[str] = frozenset()
        while True:
            shared = self.opening.shared
            tier = self.opening.config.get("preload")
            links = self._router.links.values()
            digest = await shared.digest_if_known(links) if shared is not None else None
            image = self.opening.config.get("image")
            link = self._router.pick(digest, tier, without, image)
            with link.place():
                try:
                    return await self._open_on(link, claim=claim)
                except BusyError:
                    without |= {link.row.ident}  # it filled up, or is being drained
                    claim = claim or self.log is not None
                except LinkLostError:
                    claim = claim or self.log is not None

    async def call(self, method: str, params: Params, fds: PassedFds) -> Reply:
        """Carry out a call on its node; SandboxLostError if the node is lost meanwhile.

        With `auto_recover` a call that may be repeated, or has a key, goes on on another node.
        """
        items = [fds.take_bytes() for _ in range(len(fds))]
        again = self.opening.auto_recover and verbs.may_repeat(method, params)
        while True:
            link = await self._usable()
            self._calls += 1
            self._idle.clear()
            try:
                given = {**params, "session": self.ident}
                return await link.peer.call(method, given, items)
            except LinkLostError as exc:
                self.lose(link)
                if not again or self.log is None:
                    self._lost = ""
                    raise SandboxLostError(self._explain(str(exc))) from None
            finally:
                self._calls -= 1
                if self._calls == 0:
                    self._idle.set()

    def lose(self, link: DriverLink) -> None:
        """Begin to open it elsewhere, if it was on this node and has a state."""
        if self._link is not link or self._over:
            return
        self.place(None)
        self._lost = link.lost
        if self.log is not None:
            self._recovery = asyncio.ensure_future(self._recover())

    async def move(self, link: DriverLink) -> None:
        """Leave a node that is being drained for another one; calls wait meanwhile."""
        async with self._moving:
            await self._idle.wait()
            if self._link is not link or self._over:  # it has moved already
                return
            save = self.log is None
            try:
                request = LeaveNode(session=self.ident, save=save)
                reply = await link.peer.call(request.verb, request.params())
            except LinkLostError:
                self.lose(link)
                return
            if save:
                self.opening.state = reply.passed_fds.take_bytes()
            self.place(None)
            await self.open(claim=not save)

    async def leave(self) -> None:
        """Commit, and free its place: its client has gone without ending it."""
        await self._end("leave")

    async def destroy(self) -> None:
        """End it for good."""
        await self._end("destroy")

    async def _end(self, method: str) -> None:
        self._over = True
        if self._recovery is not None:
            self._recovery.cancel()
            with contextlib.suppress(asyncio.CancelledError, AtollError):
                await self._recovery
        try:
            await self._tell_end(method)
        except (LinkLostError, SandboxClosedError) as exc:
            _LOG.debug("a session had ended before its %s: %s", method, exc)
        except AtollError as exc:
            _LOG.warning("the %s of a session failed, its state may stay: %s", method, exc)
        self.place(None)
        if self.opening.shared is not None:
            self.opening.shared.release()
            self.opening.shared = None

    async def _tell_end(self, method: str) -> None:
        """Tell the node, or the log of a session that is on none."""
        if self._link is not None:
            await self._link.peer.call(method, {"session": self.ident})
        elif self.log is not None and method == "destroy":
            await self.log.end(await self.log.claim("driver"))

    async def _usable(self) -> DriverLink:
        """Return its node; wait while it moves, and raise once if it was lost."""
        async with self._moving:
            if self._lost and not self.opening.auto_recover:
                why, self._lost = self._lost, ""
                raise SandboxLostError(self._explain(why))
            kept = self.log is not None or self.opening.state is not None
            if kept and self._link is None and self._recovery is None:
                self._recovery = asyncio.ensure_future(self._recover())  # again: it had failed
            if (recovery := self._recovery) is not None:
                try:
                    await asyncio.shield(recovery)
                finally:
                    if recovery.done():
                        self._recovery = None
            if self._link is None:
                raise SandboxLostError(self._explain("its node was lost"))
            return self._link

    async def _recover(self) -> None:
        """Open it on another node; raise the last attempt's error if none takes it in time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + RECOVER_SECONDS
        while True:
            try:
                await self.open(claim=True)
            except AtollError as exc:
                if not exc.retryable or loop.time() > end:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                self._lost = self._lost if not self.opening.auto_recover else ""
                return

    async def _open_on(self, link: DriverLink, *, claim: bool) -> Reply:
        opening, entry = self.opening, None
        if self.log is not None:
            owner = link.row.name
            entry = await (self.log.claim(owner) if claim else self.log.open(owner))
        state = opening.state if entry is None or entry.state is None else None
        request = OpenSession(
            session=self.ident,
            config=opening.config,
            durability=opening.durability,
            context=opening.context,
            entry=None if entry is None else entry.to_bytes().decode(),
            state=state is not None,
        )
        reply = await self._send_open(link, request, [] if state is None else [state])
        opening.state = None
        self.place(link)
        return reply

    async def _send_open(self, link: DriverLink, request: OpenSession, items: Items) -> Reply:
        """Ask a node to open it; the node is sent a shared context that it does not have."""
        shared = self.opening.shared
        if shared is None:
            return await link.peer.call(request.verb, request.params(), items)
        sent = await shared.put(link)
        request = dataclasses.replace(request, context={"digest": await shared.digest()})
        try:
            return await link.peer.call(request.verb, request.params(), items)
        except SandboxError as exc:
            if str(exc) != MISSING:
                raise
            await shared.put(link, missing=sent)
            return await link.peer.call(request.verb, request.params(), items)

    def _explain(self, why: str) -> str:
        if self.log is None:
            return f"{why}; the session had no durability, and is lost with it"
        return (
            f"{why}; the session goes on elsewhere as of its last commit. A call that was running "
            "may have been carried out: it is not repeated without a key"
        )
