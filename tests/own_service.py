"""A service of this test process alone: uvicorn on a loopback port, in a thread with its own loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from atoll.service.access.keys import SCOPES, Quota
from atoll.service.core.service import Service
from atoll.service.http import serving
from atoll.service.settings import ServiceSettings

LARGEST_CHECKED = 64 << 10
"""Larger answers are not kept: tests measure what the service holds."""


class SentAnswer(NamedTuple):
    """A JSON answer that a service has sent."""

    method: str
    path: str
    query: bytes
    is_problem: bool
    body: bytes


SENT: list[SentAnswer] = []
"""Answers of all services under test, to be checked against their schemas."""


class Recorded:
    """An application whose JSON answers are kept in SENT."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        kind, whole, body = b"", True, bytearray()

        async def send_noting(message: Any) -> None:
            nonlocal kind, whole, body
            if message["type"] == "http.response.start":
                kind = dict(message["headers"]).get(b"content-type", b"")
                failed = message["status"] >= 400
                whole = kind.endswith(b"/problem+json" if failed else b"/json")
            elif whole:
                body += message.get("body", b"")
                whole = len(body) <= LARGEST_CHECKED
                if whole and body and not message.get("more_body", False):
                    asked = scope["method"], scope["path"], scope["query_string"]
                    SENT.append(SentAnswer(*asked, kind.endswith(b"/problem+json"), bytes(body)))
            await send(message)

        await self._app(scope, receive, send_noting)


class OwnService:
    """Started by `start`, which returns its address and a key that may do everything."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.settings = ServiceSettings(folder=folder, port=0, **{"tier": "numeric", **settings})
        self.url = self.key = ""
        self.service: Service
        self.loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._server: Any = None

    def start(self) -> tuple[str, str]:
        if self._thread is None:
            ready: Future[None] = Future()
            self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
            self._thread.start()
            ready.result(60)
            self.key = self.add_key(scopes=SCOPES)
        return self.url, self.key

    def add_key(self, **options: Any) -> str:
        wide = Quota(
            requests_per_second=1e6, burst=10**6, sessions=512, executions=512, memory_bytes=None
        )
        return self.call(lambda: self.service.keys.add(**{"quota": wide, **options}))

    def call(self, work: Callable[[], Any]) -> Any:
        """Return what `work` returns in the service's own thread; a coroutine is awaited."""

        async def run() -> Any:
            found = work()
            return await found if asyncio.iscoroutine(found) else found

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(60)

    def stop(self) -> None:
        if self._thread is not None:
            self._server.should_exit = True
            self._thread.join(60)
            self._thread = None

    def _run(self, ready: Future[None]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as exc:
            if not ready.done():
                ready.set_exception(exc)
            raise

    async def _serve(self, ready: Future[None]) -> None:
        self.loop = asyncio.get_running_loop()
        async with serving.service(self.settings) as self.service:
            listener = serving.listen(self.settings)
            self.url = serving.address(listener)
            self._server = serving.server(self.service)
            self._server.config.loaded_app = Recorded(self._server.config.loaded_app)
            self._server.capture_signals = contextlib.nullcontext
            ready.set_result(None)
            await self._server.serve(sockets=[listener])
