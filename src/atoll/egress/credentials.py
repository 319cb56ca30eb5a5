"""Secret headers that only the host knows: added to requests, removed from responses.

SECURITY: a server that echoes a request must not show the guest a secret. The proxy searches every
response that it can read for the secret values, after unpacking and across chunk boundaries.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import TYPE_CHECKING

from atoll.egress.masks import Swap
from atoll.egress.redactor import HEXADECIMAL, JOINED, PLAIN, Form, Needle, Redactor
from atoll.egress.rules import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atoll.egress.masks import Mask
    from atoll.network import NetworkPolicy, NetworkRequest

SHORTEST, SHORTEST_ENCODED = 4, 8
"""Least characters of a value that is removed: a shorter one occurs in any text by chance."""
_SWALLOWED = 5
"""Bytes of a value that an escape which begins before it may take in: `\\` before `u0041bc`."""
_PIECE = 1 << 18
_PACKED = {"gzip", "x-gzip", "deflate"}
_ZLIB_OR_GZIP = 47


class Secrets:
    """The values that no guest may see."""

    def __init__(self, policy: NetworkPolicy, masks: Sequence[Mask] = ()) -> None:
        self._masks = masks
        added = [header for headers in policy.headers.values() for header in headers.items()]
        added += [("", mask.value) for mask in masks]
        parts = {part for name, value in added for part in _parts(name, value)}
        forms = {
            (form.reading, form.needle.text, form.before): form
            for part in sorted(parts)
            if len(part) >= SHORTEST
            for form in _forms(part.encode("utf-8", "surrogateescape"))
        }
        self._forms = tuple(forms.values())

    def __bool__(self) -> bool:
        return bool(self._forms)

    def redactor(self) -> Redactor:
        """Return a filter for one answer."""
        return Redactor(self._forms)

    def swap(self, asked: NetworkRequest) -> Swap:
        """Return what puts values in place of placeholders into a request."""
        return Swap(self._masks, asked)

    def redact(self, text: str) -> str:
        """Return a message without secrets."""
        return self.redactor().whole(text.encode("utf-8", "replace")).decode("utf-8", "replace")


class Unpacker:
    """Unpacks a response that a server compressed although the request forbade it."""

    def __init__(self, encoding: str) -> None:
        if encoding not in _PACKED:
            raise RefusedError(  # without the server's word for it, which may be a secret
                "the server sent an encoding other than gzip and deflate, which cannot be "
                "searched for the policy's secrets",
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
            raise RefusedError("the server's compressed answer is damaged", 502) from None


def _parts(name: str, value: str) -> Iterator[str]:
    """Yield a value and the credentials in it, which a server may show alone."""
    scheme, _, credential = value.partition(" ")
    yield value
    yield credential.strip()
    if scheme.lower() == "basic":
        yield from _basic(credential)
    if name.lower() == "cookie":
        yield from (cookie.partition("=")[2].strip() for cookie in value.split(";"))


def _basic(credential: str) -> list[str]:
    try:
        pair = base64.b64decode(credential, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return []
    return [pair, pair.partition(":")[2]]


def _forms(part: bytes) -> Iterator[Form]:
    """Yield the ways to write a part of a value: as it is, in lines, in base64 and base 16."""
    yield Form(PLAIN, Needle(PLAIN.form(part)))
    if len(part) >= SHORTEST_ENCODED + _SWALLOWED:
        yield Form(PLAIN, Needle(PLAIN.form(part[_SWALLOWED:])), _SWALLOWED)
    lines = [part, part.replace(b"=", b"3D")]  # as quoted-printable has it
    encoded = {HEXADECIMAL: [part.hex().encode()], JOINED: [*lines, *_base64(part)]}
    for reading, texts in encoded.items():
        for text in map(reading.form, texts):
            if len(text) >= SHORTEST_ENCODED:
                yield Form(reading, Needle(text))


def _base64(data: bytes) -> Iterator[bytes]:
    """Yield the base64 forms of the data at each of the three alignments in a larger text.

    Three bytes become four characters. The characters at both ends depend on neighbouring bytes,
    and are left out.
    """
    for before in range(3):
        text = base64.b64encode(bytes(before) + data).rstrip(b"=")
        rest = (before + len(data)) % 3
        yield text[-(-before * 8 // 6) : len(text) - (1 if rest else 0)]
