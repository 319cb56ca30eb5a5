"""A fleet in this process: nodes are called directly instead of as Ray's actors. All else is real."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atoll.daemon.paths import DaemonPaths
from atoll.fleet import cluster, lifecycle
from atoll.fleet.cluster import NodeRow
from atoll.fleet.driver import Driver
from atoll.fleet.node import NodeHost
from atoll.fleet.settings import FleetSettings
from atoll.fleet.store import Store


class Actor:
    """Calls a node's methods as an actor handle does: `actor.method.remote(...)`."""

    def __init__(self, host: NodeHost) -> None:
        self._host, self.dead = host, False
        self._calls: set[asyncio.Task[Any]] = set()

    def __getattr__(self, name: str) -> Any:
        class Method:
            @staticmethod
            def remote(*args: Any, **options: Any) -> asyncio.Task[Any]:
                return self._start(name, args, options)

        return Method

    def _start(self, name: str, args: Any, options: Any) -> asyncio.Task[Any]:
        async def call() -> Any:
            if self.dead:
                raise ConnectionError("the actor died")
            return await getattr(self._host, name)(*args, **options)

        task = asyncio.ensure_future(call())
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    def die(self) -> None:
        """Answer nothing any more, as a machine without power; nothing is saved."""
        self.dead = True
        drivers, self._host._drivers = list(self._host._drivers), {}
        self._host._listener.close()
        for driver in drivers:
            driver.end("dead")
        for task in list(self._calls):
            task.cancel("dead")


class FleetHere:
    """Nodes by name, the driver, and the fleet's settings."""

    def __init__(self, settings: FleetSettings) -> None:
        self.settings, self.driver = settings, Driver(settings, Store(settings.store))
        self.actors: dict[str, Actor] = {}
        self.hosts: list[NodeHost] = []

    def add(self, name: str) -> None:
        host = NodeHost(name, self.settings.to_json())
        self.hosts.append(host)
        self.actors[name] = Actor(host)

    def kill(self, name: str) -> None:
        self.actors.pop(name).die()

    def rows(self) -> list[NodeRow]:
        return [NodeRow(ident=name, name=name, address="127.0.0.1") for name in self.actors]


@contextlib.asynccontextmanager
async def fleet_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str, **settings: Any
) -> AsyncIterator[FleetHere]:
    """A fleet of these nodes, and the environment that leads RaySandbox to it."""
    given = {"store": str(folder / "store"), "tier": "bare", "keep_log": True, **settings}
    fleet = FleetHere(FleetSettings(**given))
    for name in names:
        fleet.add(name)
    monkeypatch.setattr(cluster, "nodes", fleet.rows)
    monkeypatch.setattr(cluster, "node_actor", lambda row, _settings: fleet.actors[row.name])
    paths = DaemonPaths(folder / "d.sock")

    async def ensure(_address: str) -> Path:
        return paths.socket

    monkeypatch.setattr(lifecycle, "ensure", ensure)
    await fleet.driver.start(paths.listen)
    while len(fleet.driver.stats()["nodes"]) < len(names):  # noqa: ASYNC110 - it polls too
        await asyncio.sleep(0.02)
    try:
        yield fleet
    finally:
        await fleet.driver.stop()
        for host in fleet.hosts:
            await host.close()
