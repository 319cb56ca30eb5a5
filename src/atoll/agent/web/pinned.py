"""Connections to the addresses that were checked; the name is not resolved again."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import httpcore2

from atoll.errors import WebError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ssrfguard import Address

_MOST_ATTEMPTS = 4
_SECONDS_EACH = 5.0
"""Seconds to connect to one address before the next is tried."""


class Pinned(httpcore2.AsyncNetworkBackend):
    """Connects to one of these addresses; the Host header and TLS still use the URL's name."""

    def __init__(self, addresses: Sequence[Address], port: int) -> None:
        self._addresses, self._port = addresses, port

    async def connect_tcp(
        self, host: str, port: int, *_: Any, **__: Any
    ) -> httpcore2.AsyncNetworkStream:
        """Return a stream to the first address that answers; `host` is not resolved."""
        assert port == self._port, host
        faults = []
        for address in self._addresses[:_MOST_ATTEMPTS]:
            try:
                stream = await httpcore2.AnyIOBackend().connect_tcp(
                    str(address.ip), port, timeout=_SECONDS_EACH
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as exc:
                faults.append(f"{address.ip}: {str(exc) or type(exc).__name__}")
                continue
            await _check_peer(stream, address)
            return stream
        raise WebError(f"{host} does not answer ({'; '.join(faults)})")


async def _check_peer(stream: httpcore2.AsyncNetworkStream, address: Address) -> None:
    peer = ip_address(stream.get_extra_info("server_addr")[0])
    if peer != address.ip:
        await stream.aclose()
        raise WebError(f"the connection to {address.ip} went to {peer}")
