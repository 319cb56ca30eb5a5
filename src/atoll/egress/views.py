"""Ways to read bytes in which a secret may be written: without escapes, without white space.

Each is a copy of the bytes in which the secret's own letters stand side by side, with a way back
to where they came from. All take time linear in the bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from html.entities import html5
from itertools import compress
from typing import Protocol

_ESCAPE = re.compile(
    rb"%[0-9A-Fa-f]{2}"
    rb"|\\(?:u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[0-7]{3}|[^%])"
    rb"|&(?:#[0-9]{1,8}|#[xX][0-9A-Fa-f]{1,8}|[A-Za-z]{2,10});",
    re.DOTALL,
)
_BEGUN = re.compile(
    rb"(?:%[0-9A-Fa-f]?"
    rb"|\\(?:u[0-9A-Fa-f]{0,3}|x[0-9A-Fa-f]?|[0-7]{1,2})?"
    rb"|&(?:#[0-9]{0,8}|#[xX][0-9A-Fa-f]{0,8}|[A-Za-z]{0,10}))\Z"
)
LONGEST_ESCAPE = 12
_CONTROLS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_NAMES = {name.encode(): text.encode() for name, text in html5.items() if text.isascii()}
_SPACE = b" \t\n\r\v\f\0="
"""Deleted between the letters of an encoding; also the signs of base64's padding and of the soft
line breaks of quoted-printable, and the zeros of UTF-16."""
_SEPARATORS = _SPACE + b":-,;"
_CAPITALS, _SMALL = bytes(range(65, 91)), bytes(range(97, 123))
_LOWER = bytes.maketrans(_CAPITALS, _SMALL)
_ONE_SPACE = bytes.maketrans(_CAPITALS + b" ", _SMALL + b"+")
_ONE_ALPHABET = bytes.maketrans(b"-_", b"+/")


class View(Protocol):
    """Bytes made of others."""

    @property
    def data(self) -> bytes:
        """The bytes."""
        ...

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Return which of the original bytes a span was made of."""
        ...


@dataclass(frozen=True, slots=True)
class Raw:
    """The bytes themselves."""

    data: bytes

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Return the span itself."""
        return start, end


class Unescaped:
    """Bytes whose escapes of JSON, URLs and HTML were replaced by what they stand for."""

    def __init__(self, below: View, *, last: bool) -> None:
        """Leave out an escape that is incomplete at the end, unless no more bytes follow."""
        self._below = below
        self._tokens: list[tuple[int, int, int]] = []
        """Of each escape: start and end below, and the length of what it stands for."""
        self.data, self.read = self._unescape(below.data, last=last)

    @property
    def changed(self) -> bool:
        """Whether there was an escape."""
        return bool(self._tokens) or self.read < len(self._below.data)

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Return which of the original bytes a span was made of."""
        return self._below.origin(self._starts[start], self._starts[end])

    def _unescape(self, data: bytes, *, last: bool) -> tuple[bytes, int]:
        parts: list[bytes] = []
        done = 0
        near_end = len(data) if last else len(data) - LONGEST_ESCAPE
        for found in _ESCAPE.finditer(data):
            if found.start() >= near_end and _BEGUN.match(data, found.start()):
                break  # "\\u00": it may go on
            meaning = _meaning(found[0])
            if meaning is not None:
                parts += (data[done : found.start()], meaning)
                done = found.end()
                self._tokens.append((found.start(), done, len(meaning)))
        begun = None if last else _BEGUN.search(data, max(done, near_end))
        end = begun.start() if begun else len(data)
        return b"".join([*parts, data[done:end]]), end

    @cached_property
    def _starts(self) -> list[int]:
        """Where below each byte was made of begins, and where the last one ends."""
        starts: list[int] = []
        done = 0
        for start, end, size in self._tokens:
            starts.extend(range(done, start))
            starts.extend([start] * size)
            done = end
        starts.extend(range(done, self.read + 1))
        return starts


class Compact:
    """Bytes without those that may stand between the letters of an encoding, translated."""

    def __init__(self, below: View, reading: Reading) -> None:
        self._below, self._deleted = below, reading.deleted
        self.data = reading.form(below.data)

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Return which of the original bytes a span was made of."""
        return self._below.origin(self._kept[start], self._kept[end - 1] + 1)

    @cached_property
    def _kept(self) -> list[int]:
        data = self._below.data
        marks = data.translate(bytes(byte not in self._deleted for byte in range(256)))
        return [*compress(range(len(data)), marks), len(data)]


@dataclass(frozen=True, slots=True)
class Reading:
    """A translation in which a kind of form is searched."""

    table: bytes
    deleted: bytes = b""

    def of(self, view: View) -> Compact:
        """Return the bytes as this reading has them."""
        return Compact(view, self)

    def form(self, text: bytes) -> bytes:
        """Return a text as this reading has it."""
        return text.translate(self.table, self.deleted)


PLAIN = Reading(_ONE_SPACE)
"""A space and a plus sign are the same, as in the query of a URL, and so are capitals and small
letters: the name of a header arrives in small ones."""
JOINED = Reading(_ONE_ALPHABET, _SPACE)
"""Without white space; both alphabets of base64 are the same."""
HEXADECIMAL = Reading(_LOWER, _SEPARATORS)


def _meaning(escape: bytes) -> bytes | None:
    """Return what an escape stands for; None if nothing that can be in a header's value."""
    kind, rest = escape[:1], escape[1:]
    if kind == b"%":
        return bytes((int(rest, 16),))
    if kind == b"&":
        return _html_meaning(rest)
    if len(rest) == 1:
        return _CONTROLS.get(rest, rest)
    return bytes((int(rest, 8) & 0xFF,)) if rest.isdigit() else _character(int(rest[1:], 16))


def _html_meaning(rest: bytes) -> bytes | None:
    if rest[:2] in (b"#x", b"#X"):
        return _character(int(rest[2:-1], 16))
    return _character(int(rest[1:-1])) if rest[:1] == b"#" else _NAMES.get(rest)


def _character(code: int) -> bytes:
    return bytes((code,)) if code < 128 else b"?"
