"""The process of `atoll serve`: the pool, the service, uvicorn, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import resource
import signal
import socket
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from atoll.errors import SandboxError
from atoll.pool import Pool, PoolSettings
from atoll.service import console
from atoll.service.app import App
from atoll.service.service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    import h11

    from atoll.service.settings import ServiceSettings

WARM_SECONDS = 600.0
MAX_HEADER_BYTES = 64 << 10
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_LOG = logging.getLogger("atoll.service")
_SOCKET_LOG = logging.Logger("atoll.service.socket", logging.WARNING)  # noqa: LOG001 - a level of its own
_SOCKET_LOG.parent = _LOG


class GuardedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for a request's head; uvicorn itself waits for ever."""

    header_seconds = 10.0
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what came; wait for the rest of a head that is not whole."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._forget()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over to a websocket; refuse it if there are too many."""
        if len(self.connections) > (self.limit_concurrency or len(self.connections)):
            self.transport.write(_TOO_MANY)
            self.transport.close()
            return
        super().handle_websocket_upgrade(event)

    def _watch(self) -> None:
        upgraded = self.transport.get_protocol() is not self  # it is a websocket's now
        if upgraded or (self.cycle is not None and not self.cycle.response_complete):
            self._forget()
        elif self._waiting is None and self.timeout_keep_alive_task is None:
            self._waiting = self.loop.call_later(self.header_seconds, self.transport.close)

    def _forget(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class QuietSocket(WebSocketsSansIOProtocol):
    """A websocket whose address is not logged: Jupyter's clients put their key into it."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.logger = self.conn.logger = _SOCKET_LOG

    async def send(self, message: Any) -> None:
        """Send; remember that a socket which was refused needs no handshake any more."""
        await super().send(message)
        self.handshake_complete |= self.close_sent


class Server(uvicorn.Server):
    """Uvicorn, whose first signal drains the service before the listener closes."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._drain: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in the loop; uvicorn's own way would end the process before we do."""
        loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002
        """Drain at the first SIGTERM or Ctrl-C; stop at once at the second."""
        if self._drain is not None:
            self.should_exit = self.force_exit = True
            return
        self._drain = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        if running := len(self._service.executions.running):
            _LOG.warning("stopping when %d executions have ended: a signal ends them now", running)
        await self._service.drain()
        self.should_exit = True


@contextlib.asynccontextmanager
async def service(
    settings: ServiceSettings, report: Callable[[str], None] = lambda _text: None
) -> AsyncIterator[Service]:
    """Yield a service with warm sandboxes; end them, and every session, at the end."""
    sandboxes = _on_fleet if settings.fleet else _on_this_machine
    async with sandboxes(settings, report) as made:
        report("trying out a sandbox")
        await made.start()
        console.install(made)
        try:
            yield made
        finally:
            await made.stop()


@contextlib.asynccontextmanager
async def _on_this_machine(
    settings: ServiceSettings, report: Callable[[str], None]
) -> AsyncIterator[Service]:
    """Yield a service whose sandboxes come from a pool of its own."""
    async with Pool(PoolSettings(default_tier=settings.tier, warm_seconds=WARM_SECONDS)) as pool:
        if pool.usable:
            report("importing the libraries that warm sandboxes have")
            with contextlib.suppress(SandboxError):  # /health/detailed says so
                await pool.warm()
        yield Service(settings, pool.open, pool.stats, pool.run)


@contextlib.asynccontextmanager
async def _on_fleet(
    settings: ServiceSettings, report: Callable[[str], None]
) -> AsyncIterator[Service]:
    """Yield a service whose sandboxes are on a fleet."""
    from atoll.service.on_fleet import fleet_sandboxes  # noqa: PLC0415 - it needs the extra `ray`

    report(f"joining the fleet at {settings.fleet}")
    async with fleet_sandboxes(settings) as fleet:
        yield Service(settings, fleet.open, fleet.tiers, fleet=fleet)


def server(made: Service) -> Server:
    """Return uvicorn for a service, with limits for what clients may do to connections."""
    settings = made.settings

    class Protocol(GuardedProtocol):
        header_seconds = settings.header_seconds

    config = uvicorn.Config(
        App(made),
        host=settings.host,
        port=settings.port,
        http=Protocol,
        ws=QuietSocket,
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=settings.header_seconds / 2,  # type: ignore[arg-type]
        timeout_graceful_shutdown=5,
    )
    return Server(config, made)


async def serve(
    settings: ServiceSettings,
    report: Callable[[str], None],
    on_ready: Callable[[Service, str], None],
) -> None:
    """Serve until SIGTERM or Ctrl-C; `on_ready` is told the address."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listener = listen(settings)  # before minutes are spent on libraries
    if settings.fleet and not settings.own_url:
        settings = dataclasses.replace(settings, own_url=address(listener))
    async with service(settings, report) as made:
        running = asyncio.ensure_future(server(made).serve(sockets=[listener]))
        on_ready(made, address(listener))
        await running


def listen(settings: ServiceSettings) -> socket.socket:
    """Return a listening socket; OSError if the address is taken."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def address(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
