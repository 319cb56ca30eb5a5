"""Where a model is: an address that is checked before a key is sent to it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from atoll.errors import ConfigError

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A server's base URL."""

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
