"""Where a model is: an address that is checked before a key is sent to it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from atoll.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A server's base URL."""

    url: str
    host: str
    local: bool
    """Whether it is this machine: no proxy is used, and nothing is paid."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address that a URL names. What is wrong with it is said without repeating it."""
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise ConfigError("base_url is not a URL: give http://HOST:PORT/v1") from None
        if parts.scheme not in {"http", "https"} or not host:
            raise ConfigError("base_url must begin with http:// or https:// and name a host")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError("base_url may have no user, password, query or fragment in it")
        return cls(url=url.rstrip("/"), host=host, local=_is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
