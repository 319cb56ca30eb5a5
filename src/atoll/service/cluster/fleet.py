"""A service in front of a fleet: its sandboxes are opened there, and any service finds a session.

    Service ── open(config) ──▶ FleetSandboxes ──▶ RaySandbox ──▶ driver ──▶ node
       └────── session, home ─▶ Directory ───────▶ the fleet's store

A request for a session that another service has is passed on to it. If that one is gone, the
session is taken over: its log makes sure that the former owner can write nothing any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING, Any, cast

import msgspec

from atoll.concurrency.background import Background
from atoll.config import fleet_address
from atoll.errors import AtollError, FleetError, SandboxClosedError, SandboxLostError
from atoll.fleet import expiry, lifecycle
from atoll.fleet.client import RaySandbox
from atoll.fleet.store import Store
from atoll.sandbox.wire import options
from atoll.service.api.overview import FleetInfo, NodeInfo
from atoll.service.cluster.directory import Directory, SessionRecord
from atoll.service.cluster.forward import UnreachableError
from atoll.service.cluster.shared_keys import SharedKeys
from atoll.service.core.tenant_session import SharedFacts
from atoll.service.http.bodies import ContextOf
from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

    from atoll.config import SandboxConfig
    from atoll.service.access.keys import Principal
    from atoll.service.api.overview import Tiers
    from atoll.service.core.service import Service
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.settings import ServiceSettings

FACTS_SECONDS, ANSWER_SECONDS = 1.0, 5.0
SUMMED = ("parked", "restarts", "taken_parked", "taken_new")
"""Figures of a tier that are summed over all nodes."""
_LOG = logging.getLogger("atoll.service")


class FleetSandboxes:
    """Opens a service's sandboxes on a fleet, and knows which service has which session."""

    def __init__(self, settings: ServiceSettings, facts: dict[str, Any]) -> None:
        self._settings, self._address = settings, fleet_address(settings.fleet)
        store = Store(facts["store"])
        self.directory, self.keys = Directory(store, settings.own_url), SharedKeys(store)
        self._adopting: dict[str, asyncio.Lock] = {}
        self.facts = facts
        """What the fleet said of itself last: nodes, load, sessions."""
        self.problem = ""
        self._asked = float("-inf")

    @property
    def blobs(self) -> str:
        """Where the services keep uploaded contexts and states, if the settings name no place."""
        store = str(self.facts["store"])
        return f"{store if '://' in store else f'file://{store}'}/service"

    async def open(self, config: SandboxConfig, code: str = "") -> RaySandbox:
        """Open a sandbox on the fleet. One for a single piece of code keeps no state there."""
        durability = "none" if code else self._settings.durability
        box = RaySandbox(self._on_fleet(config, durability))
        await box.initialize(config.context)
        return box

    def _on_fleet(self, config: SandboxConfig, durability: str) -> SandboxConfig:
        recover = durability != "none"
        return dataclasses.replace(
            config, backend="ray", url=self._address, durability=durability, auto_recover=recover
        )

    async def record(self, hosted: HostedSession) -> None:
        """Write where a session is and what it is like, so that another service finds it."""
        box, config = cast("RaySandbox", hosted.session.box), hosted.session.config
        if box is None or not box.session or self._settings.durability == "none":
            return
        context = None
        if config.context is not None and hosted.facts.context_id is None:
            context = await self.directory.put_context(hosted.id, config.context)
        shared = msgspec.convert(hosted.facts, SharedFacts, from_attributes=True)
        described = SessionRecord(
            **msgspec.structs.asdict(shared),
            number=1 if hosted.record is None else hosted.record.number + 1,
            home=self.directory.home,
            fleet_session=box.session,
            config=options.to_wire(config),
            context=context,
        )
        if not await self.directory.write(described):
            raise SandboxLostError("another service has taken the session over")
        hosted.record = described

    async def forward_or_adopt(
        self, service: Service, request: Request, principal: Principal, ident: str
    ) -> Response | None:
        """Return another service's answer; None if the session is here, taken over if need be.

        SECURITY: a session of another tenant is not found, and never taken over.
        """
        record = await self.directory.find(ident)
        if record is None or record.tenant != principal.tenant:
            return None
        if record.home != self.directory.home:
            try:
                assert service.forwarder is not None
                return await service.forwarder.pass_on(request, record.home)
            except UnreachableError:
                _LOG.warning("%s is gone: its session is taken over", record.home)
        async with self._adopting.setdefault(ident, asyncio.Lock()):
            if ident not in service.sessions:
                await self._adopt(service, principal, record)
        self._adopting.pop(ident, None)
        return None

    async def _adopt(self, service: Service, principal: Principal, record: SessionRecord) -> None:
        context = await self._context_of(record)
        config, callbacks = await service.configure_again(principal, record.config, context)
        mine = await self.directory.take(record)
        if mine is None:
            text = "another service has just taken the session over: try again"
            raise Problem(503, "routing", text, retry_after=1)
        config = self._on_fleet(config, self._settings.durability)
        box = RaySandbox(config, session=record.fleet_session)
        try:
            await box.initialize(config.context)
        except SandboxClosedError:
            await self.directory.remove(record.id)  # its log says that it has ended
            return
        await service.sessions.adopt(principal, box, config, callbacks, mine)

    async def _context_of(self, record: SessionRecord) -> ContextOf | None:
        if record.context_id is not None:
            return ContextOf(id=record.context_id)
        if record.context is not None:
            return ContextOf(value=await self.directory.context(record.context))
        return None

    async def forget(self, hosted: HostedSession) -> bool:
        """Forget a session that ends here; return False if another service has it by now."""
        try:
            return hosted.record is None or await self.directory.remove(hosted.id)
        except FleetError as exc:
            _LOG.warning("the record of a session that ends stays in the store: %s", exc)
            return True

    async def part_from_lost(self, service: Service, hosted: HostedSession) -> None:
        """Let go of a session that another service has, or whose driver has ended.

        The next request is passed on to that service, or takes the session over again.
        """
        if hosted.record is None:
            return
        if _is_cut_off(hosted):
            await service.sessions.leave(hosted, "the connection to the fleet was lost")
            return
        place = await self.directory.find(hosted.id)
        if place is not None and place.home != self.directory.home:
            await service.sessions.leave(hosted, "another service has taken it over")

    async def part_from_cut_off(self, service: Service) -> None:
        """Let go of sessions whose driver has ended: it takes no calls for them any more."""
        for hosted in service.sessions.all():
            if hosted.record is not None and _is_cut_off(hosted):
                await self.part_from_lost(service, hosted)

    async def refresh(self) -> None:
        """Ask the fleet for its nodes and their load, unless it was asked a moment ago."""
        now = asyncio.get_running_loop().time()
        if now - self._asked < FACTS_SECONDS:
            return
        self._asked = now
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self.facts, self.problem = await lifecycle.ask(self._address), ""
        except (AtollError, TimeoutError) as exc:
            self.problem = f"the fleet does not answer: {exc or type(exc).__name__}"

    def describe(self) -> FleetInfo:
        """Return what an operator may know of the fleet: figures of each node, as of `refresh`."""
        refused = [f"{name}: {why}" for name, why in self.facts.get("refused", {}).items()]
        problems = (self.problem, self.facts.get("reason", ""), self.keys.problem)
        nodes = sorted(self.facts.get("nodes", ()), key=lambda node: str(node["name"]))
        return FleetInfo(
            address=self._address,
            ident=self.facts.get("fleet"),
            problems=[*filter(None, problems), *refused],
            nodes=[msgspec.convert(node, NodeInfo) for node in nodes],
        )

    def tiers(self) -> Tiers:
        """Return the warm sandboxes of all nodes, as those of one pool."""
        summed: Tiers = {}
        for node in self.facts.get("nodes", ()):
            for tier, stats in node["tiers"].items():
                known = summed.setdefault(tier, {**stats, **dict.fromkeys(SUMMED, 0)})
                for name in SUMMED:
                    known[name] += stats.get(name, 0)
        return summed

    def close(self) -> None:
        """Part from the store."""
        self.directory.close()


def _is_cut_off(hosted: HostedSession) -> bool:
    box = hosted.session.box
    return isinstance(box, RaySandbox) and box.cut_off


@contextlib.asynccontextmanager
async def fleet_sandboxes(settings: ServiceSettings) -> AsyncIterator[FleetSandboxes]:
    """Yield the sandboxes of the fleet that the settings name; FleetError if it is not there."""
    facts = await lifecycle.ask(fleet_address(settings.fleet))
    if not facts["nodes"]:
        raise FleetError(f"the fleet has no node that takes sessions. {facts['reason']}")
    with contextlib.closing(FleetSandboxes(settings, facts)) as made:
        directory, keep = made.directory, facts["keep_seconds"]
        store, sweep, background = directory.store, directory.sweep, Background()
        sweeping = expiry.watch(background, store, keep, "service/sweeps", sweep)
        try:
            yield made
        finally:
            sweeping.cancel()
