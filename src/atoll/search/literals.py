"""Finds a text in bytes by the method that is fastest for this text and these bytes.

memmem skips bytes, more of them for a longer text. RE2 finds a single byte as fast as memory can be
read, so it searches for a text from its rarest byte on.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.search.expressions import compile_expression

if TYPE_CHECKING:
    from atoll.search.mapped_bytes import Memory

_SAMPLES, _SAMPLE = 64, 1 << 10
_LEAST_BYTES = 1 << 16
"""Bytes below which memmem is fast enough for every text."""
_MISSES = 64
# Seconds per gigabyte, measured; only the ratios between them matter.
_MEMMEM = (0, 0.05, 0.83, 0.65, 0.42, 0.33, 0.28, 0.23, 0.18, 0.14)
_MEMMEM_LONG, _READING, _STOP, _MISS, _HIT = 0.1, 0.05, 15.0, 1000.0, 5000.0


class Frequencies:
    """Estimates how often a text occurs, by samples spread over the bytes."""

    def __init__(self, memory: Memory) -> None:
        step = max(memory.size // _SAMPLES, _SAMPLE)
        places = range(0, memory.size, step)
        self._sample = b"".join(memory.part(at, at + _SAMPLE) for at in places)

    def of(self, text: bytes) -> float:
        """Return the estimated share of offsets at which the text occurs; never 0."""
        return (self._sample.count(text) + 0.2) / (len(self._sample) + 1)


class Literal:
    """Finds one text; several threads use it at once."""

    def __init__(self, needle: bytes, frequencies: Frequencies) -> None:
        self.needle = needle
        cost, self._from = _best(needle, frequencies)
        self.cost = cost + _HIT * frequencies.of(needle)
        """Estimated seconds per gigabyte to find the text and match its lines."""

    def find(self, memory: Memory, at: int, end: int) -> int:
        """Return the offset of the first whole occurrence between `at` and `end`, or -1."""
        if self._from is None or end - at < _LEAST_BYTES or self._tail is None:
            return memory.find(self.needle, at, end)
        return self._find_by_tail(memory, at, end, self._from)

    @cached_property
    def _tail(self) -> Any:
        """The expression that finds the text from its rarest byte on; None if memmem must do."""
        try:
            tail = self.needle[self._from :]
            return compile_expression(tail, ignore_case=False, literal=True, latin1=True)
        except ConfigError:
            return None  # RE2 is missing, or the text is too long for it

    def _find_by_tail(self, memory: Memory, at: int, end: int, skipped: int) -> int:
        """Find the text from its rarest byte on; by memmem if that byte is too frequent."""
        head, buffer, look_from = self.needle[:skipped], memory.buffer, at + skipped
        for _ in range(_MISSES):
            match = self._tail.search(buffer, look_from, end) if look_from < end else None
            if match is None:
                return -1
            place = match.start() - skipped
            if buffer[place : place + skipped] == head:
                return int(place)
            look_from = match.start() + 1
        return memory.find(self.needle, look_from - skipped, end)


def _best(needle: bytes, frequencies: Frequencies) -> tuple[float, int | None]:
    """Return the least cost, and the index of the byte to search from; None for memmem."""
    plain = _MEMMEM[len(needle)] if len(needle) < len(_MEMMEM) else _MEMMEM_LONG
    choices: list[tuple[float, int]] = [
        (_tail_cost(needle[at:], frequencies, missing=bool(at)), at)
        for at in range(min(len(needle), 32))
    ]
    cost, at = min(choices)
    return (cost, at) if cost < plain else (plain, None)


def _tail_cost(tail: bytes, frequencies: Frequencies, *, missing: bool) -> float:
    misses = _MISS * frequencies.of(tail) if missing else 0.0
    return _READING + _STOP * frequencies.of(tail[:1]) + misses
