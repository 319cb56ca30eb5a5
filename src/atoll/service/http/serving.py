"""The process of `atoll serve`: the pool, the service, uvicorn, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import resource
import signal
import socket
import ssl
import sys
from typing import TYPE_CHECKING, Any

import uvicorn

from atoll.config import ReplSettings, expand_home
from atoll.errors import ConfigError, SandboxError
from atoll.hosting.pool import Pool, PoolSettings
from atoll.service.core.service import Service
from atoll.service.http.app import App
from atoll.service.http.connections import GuardedProtocol, QuietSocket
from atoll.service.storage.folder import claimed
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from atoll.service.settings import ServiceSettings

WARM_SECONDS = 600.0
MAX_HEADER_BYTES = 64 << 10
MAX_UNSENT_BYTES = 128 << 10
"""Bytes of an answer that wait in the kernel until the client's window is open."""
_LOG = logging.getLogger("atoll.service")


class Server(uvicorn.Server):
    """Uvicorn, whose first signal drains the service before the listener closes."""

    def __init__(
        self, config: uvicorn.Config, service: Service, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(config)
        self._service, self._tls = service, tls
        self._drain: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in the loop; uvicorn's own way would end the process before we do."""
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup leaves it
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002
        """Drain at the first SIGTERM or Ctrl-C, stop at once at the second; SIGHUP reads keys anew.

        At a terminal SIGHUP means that the terminal is gone, and drains too.
        """
        if sig == signal.SIGHUP and not sys.stdin.isatty():
            self._reload()
        elif self._drain is not None:
            self._service.urgent = True
            self.should_exit = self.force_exit = True
        else:
            self._drain = asyncio.get_running_loop().create_task(self._end())

    def _reload(self) -> None:
        """Read the certificate and the keys of tokens again; the old ones stay if they are bad."""
        settings = self._service.settings
        try:
            for tls in (self._tls, self._service.previews.tls):
                if tls is not None:
                    load_certificate(tls, settings)
            self._service.librechat.credentials.reload(settings)
        except ConfigError as exc:
            _LOG.error("SIGHUP: %s: what was loaded before is used on", exc)
        else:
            _LOG.info("SIGHUP: the certificate and the keys of tokens were read again")

    async def _end(self) -> None:
        if running := len(self._service.executions.running):
            what = counted(running, "running executions")
            _LOG.info("stopping after %s: a second signal ends everything now", what)
        await self._service.drain()
        self.should_exit = True


@contextlib.asynccontextmanager
async def service(
    settings: ServiceSettings, report: Callable[[str], None] = lambda _text: None
) -> AsyncIterator[Service]:
    """Yield a service with warm sandboxes; end them, and every session, at the end."""
    sandboxes = _on_fleet if settings.fleet else _on_this_machine
    with claimed(settings.folder):
        async with sandboxes(settings, report) as made:
            report("trying out a sandbox")
            await made.open()
            try:
                await made.previews.open(tls_context(made.settings))
                yield made
            finally:
                await made.stop()


@contextlib.asynccontextmanager
async def _on_this_machine(
    settings: ServiceSettings, report: Callable[[str], None]
) -> AsyncIterator[Service]:
    """Yield a service whose sandboxes come from a pool of its own."""
    wanted = PoolSettings(
        default_tier=settings.tier,
        warm_seconds=WARM_SECONDS,
        zygotes=ReplSettings.from_environment().enabled,
    )
    async with Pool(wanted) as pool:
        made = Service(settings, pool.open, pool.stats, pool.run)  # its folder may be bad
        if pool.usable:
            report("importing the libraries that warm sandboxes have")
            with contextlib.suppress(SandboxError):  # /health/detailed says so
                await pool.warm()
        yield made


@contextlib.asynccontextmanager
async def _on_fleet(
    settings: ServiceSettings, report: Callable[[str], None]
) -> AsyncIterator[Service]:
    """Yield a service whose sandboxes are on a fleet."""
    from atoll.service.cluster.fleet import fleet_sandboxes  # noqa: PLC0415 - it needs the extra `ray`

    report(f"joining the fleet at {settings.fleet}")
    async with fleet_sandboxes(settings) as fleet:
        shared = dataclasses.replace(settings, blobs=settings.blobs or fleet.blobs)
        yield Service(shared, fleet.open, fleet.tiers, fleet=fleet)


def server(made: Service, tls: ssl.SSLContext | None = None) -> Server:
    """Return uvicorn for a service, with limits for connections."""
    settings = made.settings

    class Protocol(GuardedProtocol):
        header_seconds, stall_seconds = settings.header_seconds, settings.stall_seconds

    class Socket(QuietSocket):
        stall_seconds = settings.stall_seconds

    config = uvicorn.Config(
        App(made),
        host=settings.host,
        port=settings.port,
        http=Protocol,
        ws=Socket,
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # see atoll.service.http.proxies
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=settings.header_seconds / 2,  # type: ignore[arg-type]
        timeout_graceful_shutdown=5,
    )
    config.load()
    config.ssl = tls
    return Server(config, made, tls)


async def serve(
    settings: ServiceSettings,
    report: Callable[[str], None],
    on_ready: Callable[[Service, str], None],
) -> None:
    """Serve until SIGTERM or Ctrl-C; `on_ready` is called with the address."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    tls = tls_context(settings)
    listener = listen(settings)  # before minutes are spent on libraries
    if settings.fleet and not settings.own_url:
        settings = dataclasses.replace(settings, own_url=address(listener, tls))
    async with service(settings, report) as made:
        running = asyncio.ensure_future(server(made, tls).serve(sockets=[listener]))
        on_ready(made, address(listener, tls))
        await running


def tls_context(settings: ServiceSettings) -> ssl.SSLContext | None:
    """Return the context of the settings' certificate; None without one: plain HTTP."""
    if not settings.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, settings)
    return context


def load_certificate(context: ssl.SSLContext, settings: ServiceSettings) -> None:
    """Let connections from now on have the certificate that is in the files now."""
    certificate = expand_home(settings.tls_certificate)
    key = expand_home(settings.tls_key) if settings.tls_key else None

    def no_password() -> str:
        raise ConfigError("the key of the certificate has a password: store it without one")

    try:
        context.load_cert_chain(certificate, key, no_password)
    except OSError as exc:  # ssl.SSLError is one
        raise ConfigError(_certificate_fault(certificate, key, exc)) from None


def _certificate_fault(certificate: Path, key: Path | None, exc: OSError) -> str:
    """Return why a certificate and its key cannot be used, and what to type."""
    for file in filter(None, (certificate, key)):
        try:
            text = file.read_bytes()
        except OSError as failure:
            return f"cannot read certificate and key from {file}: {failure.strerror}"
        if file == certificate and b"-----BEGIN CERTIFICATE-----" not in text:
            return f"{certificate} has no certificate: --tls-certificate takes a file in PEM form"
        if b"PRIVATE KEY-----" not in text and key in (None, file):
            hint = "give the file of the certificate's key, in PEM form, with --tls-key FILE"
            return f"{file} has no private key: {hint}"
    if "KEY_VALUES_MISMATCH" in str(exc):
        return f"the key in {key or certificate} is not the key of the certificate {certificate}"
    return f"cannot use the certificate in {certificate}: {exc.strerror or exc}"


def listen(settings: ServiceSettings) -> socket.socket:
    """Return a listening socket; ConfigError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Its connections inherit it: else the kernel takes megabytes that a client does not read, which
    # no tenant's memory counts.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(1024)
    except OSError as exc:
        listener.close()
        text = f"cannot serve at {settings.host}:{settings.port}: {exc.strerror or exc}"
        raise ConfigError(f"{text}. Choose another with --host and --port") from None
    listener.setblocking(False)
    return listener


def address(listener: socket.socket, tls: ssl.SSLContext | None = None) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
