"""Previews: which ports of which sessions are shown, to whom, and the listener for visitors."""

from __future__ import annotations

import asyncio
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.service import clock
from atoll.service.http.problems import Problem
from atoll.service.previews import links
from atoll.service.previews.limits import VisitorLimits
from atoll.service.previews.proxy import PreviewProxy

if TYPE_CHECKING:
    import ssl

    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.core.tenant_session import HostedSession

MAX_SECONDS = 7 * 86_400
BACKLOG = 1024
_TABLE = "CREATE TABLE IF NOT EXISTS preview_secret (secret BLOB NOT NULL)"
OFF = "this service shows no previews: start it with --preview-port PORT"
REFUSED = "this preview does not exist, or is private: open it again from where you got its link"


@dataclass(frozen=True, slots=True)
class Link:
    """A preview that was exposed."""

    url: str
    host: str
    token: str | None
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class Visit:
    """A visitor who may see a port of a session."""

    hosted: HostedSession
    port: int
    principal: Principal
    """Whose traffic it is: the session's key."""
    origin: str
    token_seconds: int = 0
    """How long the token is valid that the visitor showed."""


class Previews:
    """The previews of one service."""

    def __init__(self, service: Service) -> None:
        database = service.database
        self._service, self.limits = service, VisitorLimits(database, service.replicas)
        database.write(_TABLE)
        row = database.one("SELECT secret FROM preview_secret")
        if row is None:  # links stay valid when the service is started again
            database.write("INSERT INTO preview_secret VALUES (?)", secrets.token_bytes(32))
            row = database.one("SELECT secret FROM preview_secret")
        assert row is not None
        self._secret: bytes = row["secret"]
        self._site: links.Site | None = None
        self._server: asyncio.Server | None = None
        self._proxy: PreviewProxy | None = None
        self.tls: ssl.SSLContext | None = None

    @property
    def enabled(self) -> bool:
        """Whether there is a listener for visitors."""
        return self._site is not None

    @property
    def site(self) -> links.Site:
        """Where previews are; 501 if this service has none."""
        if self._site is None:
            raise Problem(501, "unsupported", OFF)
        return self._site

    async def open(self, tls: ssl.SSLContext | None) -> None:
        """Listen for visitors, if the settings say so."""
        settings = self._service.settings
        if settings.preview_port is None:
            return
        links.Site.of(settings)
        proxy = self._proxy = PreviewProxy(self, self._service)
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        try:
            self._server = await asyncio.start_server(
                proxy.serve,
                settings.host,
                settings.preview_port,
                family=family,
                backlog=BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else settings.header_seconds,
            )
        except OSError as exc:
            where = f"{settings.host}:{settings.preview_port}"
            text = f"cannot show previews at {where}: {exc.strerror or exc}"
            raise ConfigError(f"{text}. Choose another with --preview-port") from None
        self.tls = tls
        self._site = links.Site.of(settings, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Close the listener and every connection."""
        if self._server is not None and self._proxy is not None:
            self._server.close()
            await self._proxy.close()

    def expose(
        self,
        principal: Principal,
        hosted: HostedSession,
        port: int,
        seconds: float,
        *,
        public: bool,
    ) -> Link:
        """Return the link of a port; with `public`, anybody who knows its host may visit it."""
        site = self.site
        if not 0 < seconds <= MAX_SECONDS:
            raise Problem(400, "invalid", f"seconds must be more than 0, and at most {MAX_SECONDS}")
        origin = site.origin(hosted.id, port)
        if public:
            if port not in hosted.facts.public_ports:
                hosted.facts.public_ports.append(port)
            return Link(f"{origin}/", site.host(hosted.id, port), None, None)
        self._make_private(hosted, port)
        expires = min(clock.now() + seconds, hosted.expires)
        token = links.sign(self._secret, _signed(hosted, port), principal.key, expires)
        url = f"{origin}/?{links.TOKEN}={token}"
        return Link(url, site.host(hosted.id, port), token, int(expires))

    def withdraw(self, hosted: HostedSession, port: int) -> None:
        """Close a port to visitors; links to the session's other ports end with it."""
        self._make_private(hosted, port)
        hosted.facts.preview_generation += 1
        if self._proxy is not None:
            self._proxy.end_visits(hosted, port)

    def _make_private(self, hosted: HostedSession, port: int) -> None:
        hosted.facts.public_ports = [known for known in hosted.facts.public_ports if known != port]

    def visit(self, host: str, token: str, traffic_token: str) -> Visit:
        """Return whom a request visits; 421 for another host, 403 if it may not.

        SECURITY: a session that does not exist, one that is private and a token that is not valid
        have the same answer.
        """
        address = self.site.parse(host)
        if address is None:
            raise Problem(421, "host", "there is no preview at this host")
        port, name = address
        hosted = self._find(name)
        if hosted is None or not 0 < port < 1 << 16:
            raise Problem(403, "preview", REFUSED)
        seconds = self._admitted(hosted, port, token, traffic_token)
        if seconds is None or hosted.over or not self._may_act(hosted.principal):
            raise Problem(403, "preview", REFUSED)
        return Visit(hosted, port, hosted.principal, self.site.origin(hosted.id, port), seconds)

    def _admitted(
        self, hosted: HostedSession, port: int, token: str, traffic_token: str
    ) -> int | None:
        """Return the seconds that a token is valid, 0 without need of one; None if refused."""
        valid = links.check(self._secret, _signed(hosted, port), token) if token else None
        if valid is not None and self._key_may_act(valid[0], hosted.tenant):
            return valid[1]
        if port in hosted.facts.public_ports:
            return 0
        return 0 if self._service.e2b.may_visit(hosted, traffic_token) else None

    def _find(self, name: str) -> HostedSession | None:
        sessions = self._service.sessions
        ident = next((known for known in sessions.idents if known.lower() == name), "")
        return sessions.find(ident)

    def _key_may_act(self, key: str, tenant: str) -> bool:
        try:
            return self._service.keys.of_id(key).tenant == tenant
        except Problem:
            return False

    def _may_act(self, principal: Principal) -> bool:
        """Return whether a session's key was neither revoked, nor has expired."""
        try:
            self._service.streams.check(principal)
        except Problem:
            return False
        return True


def _signed(hosted: HostedSession, port: int) -> links.Signed:
    return links.Signed(hosted.id, port, hosted.facts.preview_generation)
