"""Secret headers that only the host knows: added to requests, removed from responses.

SECURITY: a server that echoes a request must not show the guest a secret. The proxy searches every
response that it can read for the secret values, after unpacking and across chunk boundaries.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from typing import TYPE_CHECKING

from atoll.egress.rules import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from atoll.network import NetworkPolicy

SHORTEST, SHORTEST_ENCODED = 4, 8
"""Least characters of a value that is removed: a shorter one occurs in any text by chance."""
_PIECE = 1 << 18
_PACKED = {"gzip", "x-gzip", "deflate"}
_ZLIB_OR_GZIP = 47
_HTML_NAMES = {'"': ("quot",), "&": ("amp",), "'": ("apos",), "<": ("lt",), ">": ("gt",)}
_LONGEST_SPELLING = len("&#x00001f600;")


class Secrets:
    """The values that no guest may see."""

    def __init__(self, policy: NetworkPolicy) -> None:
        values = [value for added in policy.headers.values() for value in added.values()]
        forms = {form for value in values for form in _forms(value) if len(form) >= SHORTEST}
        ordered = sorted(forms, key=lambda form: (-len(form), form))
        pattern = "|".join("".join(map(_spelled, form)) for form in ordered).encode()
        self._pattern = re.compile(pattern) if ordered else None
        self._longest = max((sum(map(_longest, form)) for form in ordered), default=0)

    def __bool__(self) -> bool:
        return self._pattern is not None

    def redactor(self) -> Redactor:
        """Return a filter for one answer."""
        return Redactor(self._pattern, self._longest)


class Redactor:
    """Replaces secrets in a stream by as many asterisks; buffers bytes that may begin one."""

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
                break  # a longer secret may begin here: wait for more bytes
            clean[found.start() : found.end()] = b"*" * (found.end() - found.start())
            self.count += 1
            end = max(end, found.end())
        self._tail = data[end:]
        return bytes(clean[:end])

    def whole(self, data: bytes) -> bytes:
        """Return a complete text, such as a header's value, without secrets."""
        if self._pattern is None:
            return data
        found: list[bytes] = self._pattern.findall(data)
        self.count += len(found)
        return self._pattern.sub(lambda one: b"*" * len(one[0]), data)


class Unpacker:
    """Unpacks a response that a server compressed although the request forbade it."""

    def __init__(self, encoding: str) -> None:
        if encoding not in _PACKED:
            raise RefusedError(
                f"the server sent the encoding {encoding[:40]!r}, which cannot be searched for "
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
            raise RefusedError("the server's compressed answer is damaged", 502) from None


def _forms(value: str) -> Iterable[str]:
    """Yield a value, the credential in it, and both as hexadecimal digits and base64."""
    scheme, _, credential = value.partition(" ")
    parts = [value, *([credential.strip()] if credential else [])]
    if scheme.lower() == "basic":
        parts += _basic(credential)
    for part in parts:
        yield part
        encoded = (part.encode().hex(), part.encode().hex().upper(), *_base64(part.encode()))
        yield from (form for form in encoded if len(form) >= SHORTEST_ENCODED)


def _base64(data: bytes) -> Iterable[str]:
    """Yield the base64 forms of the data at each of the three alignments in a larger text.

    Three bytes become four characters. The characters at both ends depend on neighbouring bytes,
    and are left out.
    """
    for before in range(3):
        text = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        rest = (before + len(data)) % 3
        cut = text[-(-before * 8 // 6) : len(text) - (1 if rest else 0)]
        yield from (cut, cut.replace("+", "-").replace("/", "_"))


def _spelled(character: str) -> str:
    """Return a pattern of the ways in which JSON, URLs and HTML write a character."""
    if _is_plain(character):
        return character
    itself, code = re.escape(character), ord(character)
    in_url = "".join(f"%(?i:{byte:02x})" for byte in character.encode())
    in_json = rf"\\(?:{itself}|u(?i:{code:04x})|x(?i:{code:02x}))"
    in_html = f"&#(?:0{{0,4}}{code}|[xX]0{{0,4}}(?i:{code:x}));"
    names = [rf"&{name};" for name in _HTML_NAMES.get(character, ())]
    plus = [r"\+"] if character == " " else []
    return f"(?:{'|'.join([itself, in_url, in_json, in_html, *names, *plus])})"


def _longest(character: str) -> int:
    return 1 if _is_plain(character) else _LONGEST_SPELLING


def _is_plain(character: str) -> bool:
    """Return whether every text writes the character as itself."""
    return character.isascii() and character.isalnum()


def _basic(credential: str) -> list[str]:
    try:
        pair = base64.b64decode(credential, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return []
    return [pair, pair.partition(":")[2]]
