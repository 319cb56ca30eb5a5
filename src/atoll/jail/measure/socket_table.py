"""Reads the kernel's tables of TCP sockets: /proc/net/tcp and /proc/net/tcp6."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LISTENS = b"0A"


def listening(rows: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """Yield port and address of each socket that listens; the kernel lists these first."""
    for row in rows:
        _, local, _, state, *_ = row.split(None, 4)
        if state != _LISTENS:
            return
        address, _, port = local.partition(b":")
        yield int(port, 16), _readable(address.decode())


def _readable(address: str) -> str:
    """Return an address that the kernel wrote as words in its own byte order."""
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
