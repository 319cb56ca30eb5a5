"""Headers that only the host knows: added to requests, taken out of what servers answer.

SECURITY: a server that echoes a request must not show the guest a secret. Every answer that the
proxy can read is searched for the known values, unpacked and across the borders of its pieces.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
import zlib
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

from atoll.egress.rules import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from atoll.network import NetworkPolicy

SHORTEST = 4
"""Characters of a value that is taken out: a shorter one stands in any text by chance."""
_PIECE = 1 << 18
_PACKED = {"gzip", "x-gzip", "deflate"}
_ZLIB_OR_GZIP = 47


class Secrets:
    """The values that no guest may see."""

    def __init__(self, policy: NetworkPolicy) -> None:
        values = [value for added in policy.headers.values() for value in added.values()]
        forms = {form for value in values for form in _forms(value) if len(form) >= SHORTEST}
        ordered = sorted((form.encode() for form in forms), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, ordered))) if ordered else None
        self._longest = len(ordered[0]) if ordered else 0

    def __bool__(self) -> bool:
        return self._pattern is not None

    def redactor(self) -> Redactor:
        """Return a filter for one answer."""
        return Redactor(self._pattern, self._longest)


class Redactor:
    """Replaces secrets in a stream by as many asterisks; holds back what may be half of one."""

    def __init__(self, pattern: re.Pattern[bytes] | None, longest: int) -> None:
        self._pattern, self._held_back = pattern, max(0, longest - 1)
        self._tail = b""
        self.count = 0

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """Return the bytes that can be passed on."""
        if self._pattern is None:
            return data
        data = self._tail + data
        clean, end = bytearray(data), len(data) if last else max(0, len(data) - self._held_back)
        for found in self._pattern.finditer(data):
            if found.start() >= end:
                break  # a longer one may begin here: decided when more is known
            clean[found.start() : found.end()] = b"*" * (found.end() - found.start())
            self.count += 1
            end = max(end, found.end())
        self._tail = data[end:]
        return bytes(clean[:end])

    def whole(self, data: bytes) -> bytes:
        """Return a text that came whole, such as a header's value."""
        if self._pattern is None:
            return data
        found: list[bytes] = self._pattern.findall(data)
        self.count += len(found)
        return self._pattern.sub(lambda one: b"*" * len(one[0]), data)


class Unpacker:
    """Unpacks an answer that a server packed though it was asked not to."""

    def __init__(self, encoding: str) -> None:
        if encoding not in _PACKED:
            raise RefusedError(
                f"the server packs its answer by {encoding[:40]!r}, which cannot be searched for "
                f"the policy's secrets",
                502,
            )
        self._stream = zlib.decompressobj(_ZLIB_OR_GZIP)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield unpacked pieces of bounded size; RefusedError if the data is damaged."""
        try:
            while data:
                yield self._stream.decompress(data, _PIECE)
                data = self._stream.unconsumed_tail
                if self._stream.eof and self._stream.unused_data:
                    data = self._stream.unused_data
                    self._stream = zlib.decompressobj(_ZLIB_OR_GZIP)
        except zlib.error:
            raise RefusedError("the server's packed answer is damaged", 502) from None


def _forms(value: str) -> Iterable[str]:
    """Yield a value, the credential in it, and how pages and documents spell them."""
    scheme, _, credential = value.partition(" ")
    parts = [value, *([credential.strip()] if credential else [])]
    if scheme.lower() == "basic":
        parts += _basic(credential)
    for part in parts:
        yield from (part, quote(part, safe=""), quote_plus(part), html.escape(part))
        yield json.dumps(part)[1:-1]


def _basic(credential: str) -> list[str]:
    try:
        pair = base64.b64decode(credential, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return []
    return [pair, pair.partition(":")[2]]
