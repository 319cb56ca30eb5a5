"""Where a model is, and what one call to it may take."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from atoll.errors import ConfigError
from atoll.policy import MIB, check_positive

DEFAULT_TIMEOUT_SECONDS = 600.0
DEFAULT_RETRIES = 4
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A server's base URL, which is checked before a key is sent to it."""

    url: str
    host: str
    port: int
    local: bool
    """Whether it is this machine: no proxy is used, and nothing is paid."""

    @property
    def place(self) -> str:
        """Host and port, as error messages name them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address that a URL names. What is wrong with it is said without repeating it."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ConfigError("base_url is not a URL: give http://HOST:PORT/v1") from None
        if parts.scheme not in DEFAULT_PORTS or not host:
            raise ConfigError("base_url must begin with http:// or https:// and name a host")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError("base_url may have no user, password, query or fragment in it")
        port = port or DEFAULT_PORTS[parts.scheme]
        return cls(url=url.rstrip("/"), host=host, port=port, local=_is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may take."""

    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """A call with all its retries."""
    idle_seconds: float = 300.0
    """Silence in a stream: a model may think for minutes. An answer that is not streamed comes
    after one long silence, which only `timeout_seconds` ends."""
    connect_seconds: float = 10.0
    max_retries: int = DEFAULT_RETRIES
    max_retry_wait_seconds: float = 60.0
    """The longest that a server's Retry-After is heeded."""
    max_bytes: int = 64 * MIB
    """An answer, as it comes over the wire."""
    max_event_bytes: int = MIB
    """One event of a streamed answer."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name != "max_retries":
                check_positive(name, getattr(self, name))
        if self.max_retries < 0:
            raise ConfigError(f"max_retries must be 0 or more, not {self.max_retries}")
