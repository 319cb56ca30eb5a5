"""Finds the address of a client behind a reverse proxy.

SECURITY: any client can send `X-Forwarded-For`. It counts only in a request whose connection comes
from a network that the operator named (--trusted-proxy). A request that passed a proxy which was
not named has no known client, and gets no right from an address.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

    from starlette.types import Scope

_FOR, PROTO = b"x-forwarded-for", b"x-forwarded-proto"
_SIGNS = frozenset({_FOR, b"forwarded", b"x-real-ip", b"x-forwarded-host", b"via", b"x-client-ip"})
"""Headers that a proxy adds."""
_KNOWN = "atoll.client_known"
_SCHEMES = {"http": ("http", "ws"), "https": ("https", "wss")}


class Proxies:
    """The proxies that the operator trusts."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [parse_network("trusted_proxies", text) for text in networks]

    def apply(self, scope: Scope) -> None:
        """Replace the proxy's address and scheme in a request by its client's."""
        peer = _address(scope["client"][0] if scope.get("client") else "")
        trusted = self._trusts(peer)
        chain = [value for name, value in scope["headers"] if name == _FOR]
        if trusted and chain:
            client = self._client(b",".join(chain).decode("latin-1"))
            scope["client"] = (str(client), 0) if client else None
            scope[_KNOWN] = client is not None
        else:
            scope[_KNOWN] = not trusted and not _has_signs(scope)
        if trusted or (peer is not None and peer.is_loopback):  # a scheme gives no right
            _apply_scheme(scope)

    def _client(self, chain: str) -> IPv4Address | IPv6Address | None:
        """Return the last address that is not a trusted proxy's own: it was added by one."""
        for text in reversed(chain.split(",")):
            address = _address(text.strip())
            if address is None or not self._trusts(address):
                return address
        return None

    def _trusts(self, address: IPv4Address | IPv6Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def is_client_known(scope: Scope) -> bool:
    """Return whether the address of a request is its client's own."""
    known: bool = scope.get(_KNOWN, not _has_signs(scope))
    return known


def parse_network(setting: str, text: str) -> IPv4Network | IPv6Network:
    """Return the network of an address or a CIDR; ConfigError."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as exc:
        raise ConfigError(f"{setting} must be networks such as 10.0.0.0/8: {exc}") from None


def _has_signs(scope: Scope) -> bool:
    return any(name in _SIGNS for name, _ in scope["headers"])


def _apply_scheme(scope: Scope) -> None:
    given = [value.decode("latin-1").strip() for name, value in scope["headers"] if name == PROTO]
    if len(given) == 1 and given[0] in _SCHEMES:
        scope["scheme"] = _SCHEMES[given[0]][scope["type"] == "websocket"]


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address, IPv4 if it is mapped to IPv6; None for other texts."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
