"""Preview links: the host name of a session's port, and the signed token that opens it.

    https://8000-SESSION.DOMAIN/?atoll-preview=TOKEN

SECURITY: a token opens one port of one session until it expires, as long as the key that made it is
valid and the port was not withdrawn. Host names ignore case, so a session is found by its id in
lower case, which still has more than 100 random bits.
"""

from __future__ import annotations

import base64
import hmac
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from atoll.errors import ConfigError
from atoll.service import clock

if TYPE_CHECKING:
    from atoll.service.settings import ServiceSettings

TOKEN = "atoll-preview"  # noqa: S105 - the name of the parameter, of the cookie and of the header
_DOMAIN = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)*\Z")
_TOKEN = re.compile(r"(\d{10,12})\.([0-9a-f]{8})\.([A-Za-z0-9_-]{43})\Z")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Site:
    """Where previews are: scheme, domain and port of their URLs."""

    scheme: str
    domain: str
    port: int

    @classmethod
    def of(cls, settings: ServiceSettings, listening: int = 0) -> Site:
        """Return the site of the settings. A domain with a scheme is behind a reverse proxy."""
        given = settings.preview_domain.lower()
        try:
            parts = urlsplit(given if "://" in given else f"//{given}")
            port, host = parts.port, parts.hostname or ""
        except ValueError:
            port, host = None, ""
        if not _DOMAIN.match(host) or parts.path or parts.scheme not in ("", *_PORTS):
            text = f"preview_domain must be a domain, or https://DOMAIN, not {given[:100]!r}"
            raise ConfigError(text)
        if parts.scheme:
            return cls(parts.scheme, host, port or _PORTS[parts.scheme])
        return cls("https" if settings.tls_certificate else "http", host, port or listening)

    @property
    def place(self) -> str:
        """The domain, with the port unless it is the usual one."""
        usual = self.port == _PORTS[self.scheme]
        return self.domain if usual else f"{self.domain}:{self.port}"

    def host(self, session: str, port: int) -> str:
        """Return the host, as a Host header has it, of a session's port."""
        return f"{port}-{session.lower()}.{self.place}"

    def origin(self, session: str, port: int) -> str:
        """Return the origin of a session's port."""
        return f"{self.scheme}://{self.host(session, port)}"

    def parse(self, host: str) -> tuple[int, str] | None:
        """Return port and session of a Host header, the session in lower case; None for others."""
        name, _, end = host.lower().partition(":")
        match = re.match(r"(\d{1,5})-([a-z0-9_-]{1,57})\.", name)
        if match is None or name[match.end() :] != self.domain or not re.match(r"\d{0,5}\Z", end):
            return None
        return int(match[1]), match[2]

    @property
    def cookie(self) -> str:
        """The name of the cookie that has the token; no other host can set it over TLS."""
        return f"__Host-{TOKEN}" if self.scheme == "https" else TOKEN

    def set_cookie(self, token: str, seconds: int) -> str:
        """Return a Set-Cookie header for this one host, which no script reads."""
        secure = "; Secure" if self.scheme == "https" else ""
        rules = f"Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}"
        return f"{self.cookie}={token}; {rules}"


@dataclass(frozen=True, slots=True)
class Signed:
    """What a token is for; `generation` counts how often ports of the session were withdrawn."""

    session: str
    port: int
    generation: int


def sign(secret: bytes, what: Signed, key: str, expires: float) -> str:
    """Return a token, made by the key with this id."""
    until = str(int(expires))
    return f"{until}.{key}.{_signature(secret, what, key, until)}"


def check(secret: bytes, what: Signed, token: str) -> tuple[str, int] | None:
    """Return the id of the key that made a token, and its seconds left; None if not valid."""
    match = _TOKEN.match(token)
    if match is None:
        return None
    until, key, given = match.groups()
    if not hmac.compare_digest(_signature(secret, what, key, until), given):
        return None
    left = int(until) - int(clock.now())
    return (key, left) if left > 0 else None


def _signature(secret: bytes, what: Signed, key: str, until: str) -> str:
    text = f"preview:{what.session}:{what.port}:{what.generation}:{key}:{until}"
    made = hmac.digest(secret, text.encode(), "sha256")
    return base64.urlsafe_b64encode(made).decode().rstrip("=")
