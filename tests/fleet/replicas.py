"""Services before a fleet that is in this process, each with its server and a client."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2

from atoll.service.access.keys import SCOPES
from atoll.service.core.service import Service
from atoll.service.http import serving
from atoll.service.settings import ServiceSettings


class Replica:
    """One service with its server, and a client of it."""

    def __init__(
        self, service: Service, server: Any, running: asyncio.Task[None], url: str
    ) -> None:
        self.service, self._server, self._running, self.url = service, server, running, url
        self.client = httpx2.AsyncClient(base_url=url, timeout=60)

    async def ask(self, method: str, path: str, **given: Any) -> Any:
        return await self.client.request(method, f"/api/v1{path}", **given)

    async def run(self, at: str, code: str) -> Any:
        answer = await self.ask("POST", f"{at}/executions", json={"code": code})
        assert answer.status_code == 200, answer.text
        return answer.json()["value"]

    async def session(self, **given: Any) -> str:
        answer = await self.ask("POST", "/sessions", json=given)
        assert answer.status_code == 201, answer.text
        return f"/sessions/{answer.json()['id']}"

    async def close_listener(self) -> None:
        """Answer nothing any more, as a process that was killed; what it knows stays."""
        self._server.should_exit = True
        await self._running
        await self.client.aclose()


@contextlib.asynccontextmanager
async def replica(folder: Path, **settings: Any) -> AsyncIterator[Replica]:
    given = ServiceSettings(folder=folder, port=0, fleet="127.0.0.1:1", **settings)
    with contextlib.closing(serving.listen(given)) as listener:
        url = serving.address(listener)
        async with serving.service(dataclasses.replace(given, own_url=url)) as service:
            server = serving.server(service)
            server.capture_signals = contextlib.nullcontext
            running = asyncio.ensure_future(server.serve([listener]))
            made = Replica(service, server, running, url)
            try:
                yield made
            finally:
                await made.close_listener()


async def share_key(one: Replica, *others: Replica, tenant: str = "default") -> None:
    """Make a key at one service, and let the clients of all of them send it."""
    key = one.service.keys.add("test", tenant=tenant, scopes=SCOPES)
    for each in (one, *others):
        await each.service.share_keys()
        each.client.headers["authorization"] = f"Bearer {key}"
        assert (await each.ask("GET", "/whoami")).status_code == 200
