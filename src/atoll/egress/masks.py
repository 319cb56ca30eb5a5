"""Placeholders of credentials in a guest's requests, replaced by the values on the way to a server.

SECURITY: each has hosts of its own, so a placeholder that is sent to another host stays one. What
is missed, such as in a compressed body, reaches the server as the placeholder: nothing leaks.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.network import HostRule

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from atoll.egress.http import Headers
    from atoll.network import NetworkRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A placeholder that a guest has, and the value that only the host has."""

    placeholder: str
    value: str = field(repr=False)
    hosts: tuple[str, ...]
    """Rules of hosts that the value may be sent to."""
    plain: bool = False
    """Whether it may be sent in plain http too."""

    def is_for(self, asked: NetworkRequest) -> bool:
        """Return whether a request may carry the value."""
        if asked.scheme != "https" and not self.plain:
            return False
        rules = map(HostRule.parse, self.hosts)
        return any(rule.names(asked.host) and rule.port in (None, asked.port) for rule in rules)


class Swap:
    """Replaces the placeholders in one request."""

    def __init__(self, masks: Sequence[Mask], asked: NetworkRequest) -> None:
        self._pairs = [
            (mask.placeholder.encode(), mask.value.encode("utf-8", "surrogateescape"))
            for mask in masks
            if mask.is_for(asked)
        ]

    def __bool__(self) -> bool:
        return bool(self._pairs)

    @property
    def keeps_length(self) -> bool:
        """Whether all values are as long as their placeholders."""
        return all(len(placeholder) == len(value) for placeholder, value in self._pairs)

    def text(self, data: bytes) -> bytes:
        """Return bytes with the values in place of the placeholders."""
        for placeholder, value in self._pairs:
            data = data.replace(placeholder, value)
        return data

    def headers(self, headers: Headers) -> Headers:
        """Return headers with the values, also in the base64 of a user name and password."""
        return [(name, self._header(value)) for name, value in headers]

    def _header(self, value: bytes) -> bytes:
        scheme, _, encoded = value.partition(b" ")
        if scheme.lower() == b"basic":
            try:
                pair = base64.b64decode(encoded.strip(), validate=True)
            except binascii.Error:
                return value
            return scheme + b" " + base64.b64encode(self.text(pair))
        return self.text(value)

    async def body(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield a body with the values; the end of each piece is held back as it may be a part."""
        most = max((len(placeholder) for placeholder, _ in self._pairs), default=1) - 1
        held = b""
        async for piece in pieces:
            held = self.text(held + piece)
            keep = self._begun(held, most)
            if len(held) > keep:
                yield held[: len(held) - keep]
            held = held[len(held) - keep :]
        if held:
            yield held

    def _begun(self, data: bytes, most: int) -> int:
        """Return how many last bytes may begin a placeholder."""
        for size in range(min(most, len(data)), 0, -1):
            end = data[-size:]
            if any(placeholder.startswith(end) for placeholder, _ in self._pairs):
                return size
        return 0
