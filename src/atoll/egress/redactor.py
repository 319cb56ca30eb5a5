"""Replaces secrets in a stream, whatever way they are written and split.

SECURITY: a server chooses the bytes, and a tenant the secrets: the time is linear in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.egress.views import LONGEST_ESCAPE, Raw, Unescaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from atoll.egress.needles import Needle
    from atoll.egress.views import Compact, Reading, View

Span = tuple[int, int]
_ROUNDS = 2
"""How often escapes are undone: a URL within JSON, JSON within JSON."""
_LAG = 4096
"""So many bytes may be held and searched again for each piece that follows, however small."""


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
        found = [(0, self._covered)] if self._covered else []
        end = len(data)
        for view in _views(data, last=last):
            end = min(end, view.origin(len(view.data), len(view.data))[1])
            for form, read in self._readings(view):
                for start, stop in form.needle.spans(read.data):
                    found.append(read.origin(max(0, start - form.before), stop))
                if not last and (begun := form.needle.begun(read.data)):
                    start = max(0, len(read.data) - begun - form.before)
                    end = min(end, read.origin(start, start + 1)[0])
        return self._release(data, found, max(end, 0 if last else len(data) - self._most_held))

    def _readings(self, view: View) -> Iterator[tuple[Form, Compact]]:
        read: dict[Reading, Compact] = {}
        for form in self._forms:
            if form.before and isinstance(view, Raw):
                continue
            if form.reading not in read:
                read[form.reading] = form.reading.of(view)
            yield form, read[form.reading]

    def _release(self, data: bytes, found: Iterable[Span], end: int) -> bytes:
        """Return the bytes before `end` without secrets, and keep the others."""
        clean, covered = bytearray(data[:end]), 0
        for start, stop in _merged(found):
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
