"""Replaces secrets in a stream, whatever way they are written and split.

Bytes are read in several views: as they are, without escapes, without white space. A view is a copy
in which the secret's own letters stand side by side, with a way back to where they came from.

SECURITY: a server chooses the bytes, and a tenant the secrets: the time is linear in both.
`bytes.find` alone is not enough: where a text overlaps itself ("----"), starting it anew at each
byte takes time quadratic in the text's length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from html.entities import html5
from itertools import compress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SMALL, _LARGE, _SHORT = 2_500, 30_000, 100
"""Between these sizes CPython's `find` takes data times text, if the text is not short."""
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
_CAPITALS, _SMALL_LETTERS = bytes(range(65, 91)), bytes(range(97, 123))
_LOWER = bytes.maketrans(_CAPITALS, _SMALL_LETTERS)
_ONE_SPACE = bytes.maketrans(_CAPITALS + b" ", _SMALL_LETTERS + b"+")
_ONE_ALPHABET = bytes.maketrans(b"-_", b"+/")
Span = tuple[int, int]
_ROUNDS = 2
"""How often escapes are undone: a URL within JSON, JSON within JSON."""
_LAG = 4096
"""So many bytes may be held and searched again for each piece that follows, however small."""


class Needle:
    """A text to find."""

    __slots__ = ("__dict__", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield where the text is; occurrences that overlap may be yielded as one span."""
        size, start = len(self.text), self._find(data, 0)
        while start >= 0:
            end = self._run_end(data, start + size)
            yield start, end
            start = self._find(data, end - size + self._step)

    def begun(self, data: bytes) -> int:
        """Return how many bytes at the end of the data may be the beginning of the text."""
        size = len(self.text)
        tail = data[max(0, len(data) - size + 1) :]
        first = tail.find(self.text[:1])
        if first < 0:
            return 0
        borders, text, matched = self._borders, self.text, 0
        for byte in tail[first:]:
            while matched and text[matched] != byte:
                matched = borders[matched - 1]
            if text[matched] == byte:
                matched += 1
        return matched

    @cached_property
    def period(self) -> int:
        """The least distance at which the text overlaps itself."""
        return len(self.text) - self._borders[-1]

    @cached_property
    def _step(self) -> int:
        """The least distance from the last occurrence of a run to the next one.

        It is a distance at which the text overlaps itself. Those that are no multiples of the
        period are longer than the rest of the text without one period (Fine and Wilf).
        """
        size, period = len(self.text), self.period
        return size - period + 1 if size >= 2 * period else period

    @cached_property
    def _borders(self) -> list[int]:
        """For each beginning of the text: the length of its longest end that also begins it."""
        text, borders, matched = self.text, [0], 0
        for byte in text[1:]:
            while matched and text[matched] != byte:
                matched = borders[matched - 1]
            if text[matched] == byte:
                matched += 1
            borders.append(matched)
        return borders

    def _run_end(self, data: bytes, end: int) -> int:
        """Return where a run of overlapping occurrences ends, of which the first ends at `end`."""
        period = self.period
        if 2 * period > len(self.text):
            return end
        for step in (len(self.text) // period * period, period):
            again = self.text[-step:]
            while data.startswith(again, end):
                end += step
        return end

    def _find(self, data: bytes, start: int) -> int:
        if len(self.text) < _SHORT or not _SMALL < len(data) - start < _LARGE:
            return data.find(self.text, start)
        padded = data[start:].ljust(_LARGE, b"\0")
        index = padded.find(self.text)
        return index + start if index >= 0 else -1


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
        """Of each escape: start and end below, and the length of its decoded text."""
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
        for match in _ESCAPE.finditer(data):
            if match.start() >= near_end and _BEGUN.match(data, match.start()):
                break  # "\\u00": it may go on
            meaning = _meaning(match[0])
            if meaning is not None:
                parts += (data[done : match.start()], meaning)
                done = match.end()
                self._tokens.append((match.start(), done, len(meaning)))
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


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write a secret."""

    reading: Reading
    needle: Needle
    before: int = 0
    """Bytes of the secret before the needle, which an escape may hide that begins before it."""


class Redactor:
    """Replaces secrets in a stream by as many asterisks; holds back bytes that may begin one."""

    def __init__(self, forms: tuple[Form, ...]) -> None:
        self._forms = forms
        longest = max((len(form.needle.text) for form in forms), default=0)
        self._most_held = _LAG + LONGEST_ESCAPE * longest
        self._held = b""
        self._covered = 0
        """How many of the bytes that are held belong to a secret that was found."""
        self._waiting = bytearray()
        self.count = 0

    def work(self, size: int) -> int:
        """Return how many bytes are searched if so many come next."""
        return len(self._forms) * (len(self._held) + len(self._waiting) + size)

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """Return the bytes that can be passed on."""
        if not self._forms:
            return data
        self._waiting += data
        if not last and len(self._waiting) < (len(self._held) - _LAG) // 8:
            return b""  # or each byte of a slow stream would have all that is held searched again
        data = self._held + bytes(self._waiting)
        self._waiting.clear()
        return self._search(data, last=last)

    def whole(self, data: bytes) -> bytes:
        """Return a complete text, such as a header's value, without secrets."""
        text = Redactor(self._forms)
        clean = text.feed(data, last=True)
        self.count += text.count
        return clean

    def _search(self, data: bytes, *, last: bool) -> bytes:
        result = [(0, self._covered)] if self._covered else []
        end = len(data)
        for view in _views(data, last=last):
            end = min(end, view.origin(len(view.data), len(view.data))[1])
            for form, read in self._readings(view):
                for start, stop in form.needle.spans(read.data):
                    result.append(read.origin(max(0, start - form.before), stop))
                if not last and (begun := form.needle.begun(read.data)):
                    start = max(0, len(read.data) - begun - form.before)
                    end = min(end, read.origin(start, start + 1)[0])
        return self._release(data, result, max(end, 0 if last else len(data) - self._most_held))

    def _readings(self, view: View) -> Iterator[tuple[Form, Compact]]:
        read: dict[Reading, Compact] = {}
        for form in self._forms:
            if form.before and isinstance(view, Raw):
                continue
            if form.reading not in read:
                read[form.reading] = form.reading.of(view)
            yield form, read[form.reading]

    def _release(self, data: bytes, spans: Iterable[Span], end: int) -> bytes:
        """Return the bytes before `end` without secrets, and keep the others."""
        clean, covered = bytearray(data[:end]), 0
        for start, stop in _merged(spans):
            counted = self._covered > 0 and start == 0
            if start < end or counted:
                size = max(0, min(stop, end) - start)
                clean[start : start + size] = b"*" * size
                covered = max(covered, stop - end)
                self.count += not counted
        self._held, self._covered = data[end:], covered
        return bytes(clean)


def _views(data: bytes, *, last: bool) -> Iterator[View]:
    """Yield the bytes, and what they are once their escapes are undone, and undone again."""
    view: View = Raw(data)
    yield view
    for _ in range(_ROUNDS):
        view = plain = Unescaped(view, last=last)
        if not plain.changed:
            return
        yield view


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield spans in order, those that overlap as one."""
    first, last = -1, -1
    for start, stop in sorted(spans):
        if start >= last:
            if last > first:
                yield first, last
            first = start
        last = max(last, stop)
    if last > first:
        yield first, last
