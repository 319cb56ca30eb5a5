"""Receives a response body: counts bytes before and after unpacking, and cuts at the limit."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from atoll.agent.archive.inflate import Zlib
from atoll.errors import WebError

if TYPE_CHECKING:
    from atoll.agent.archive.inflate import Decompressor

ACCEPTED = "gzip, deflate"
_WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class Body:
    """The body received so far."""

    def __init__(self, encoding: str, most: int) -> None:
        """`encoding`: the header Content-Encoding."""
        self._most = most
        self._packed = _unpacker(encoding)
        self._came = 0
        self._data = bytearray()
        self.truncated = False

    def add(self, piece: bytes) -> None:
        """Add the next bytes; after `truncated` no more are needed."""
        self._came += len(piece)
        room = self._most - len(self._data)
        self._data += self._unpack(piece, room + 1)
        if len(self._data) > self._most or self._came > self._most:
            del self._data[self._most :]
            self.truncated = True

    def end(self) -> bytes:
        """Return the whole body, after the server has closed it."""
        if self._packed is not None and self._came and not self._packed.eof:
            self.truncated = True
        return bytes(self._data)

    def _unpack(self, piece: bytes, most: int) -> bytes:
        if self._packed is None:
            return piece
        if self._packed.eof:
            return b""  # ignores zeros or another stream, which servers do not send
        try:
            return self._packed.decompress(piece, most)
        except zlib.error as exc:
            raise WebError(f"the server's compressed data is damaged: {exc}") from None


def _unpacker(encoding: str) -> Decompressor | None:
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return None
    if name not in _WBITS:
        raise WebError(f"the server sent the encoding {name[:100]!r}, which was not asked for")
    return Zlib(_WBITS[name])
