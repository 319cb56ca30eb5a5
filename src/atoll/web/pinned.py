"""Connections that go to the addresses they were checked for, whatever the name says by now."""

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
"""For one address, so that the next gets its turn."""


class Pinned(httpcore2.AsyncNetworkBackend):
    """Connects to one of these, by number. Host header and TLS go by the URL, as they should."""

    def __init__(self, addresses: Sequence[Address], port: int) -> None:
        self._addresses, self._port = addresses, port

    async def connect_tcp(
        self, host: str, port: int, *_: Any, **__: Any
    ) -> httpcore2.AsyncNetworkStream:
        """A stream to the first that answers; the name is not looked at."""
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
