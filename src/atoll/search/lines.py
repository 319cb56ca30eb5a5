"""Finds the line number of an offset: counts line ends block by block, only as far as needed."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from importlib.util import find_spec
from typing import TYPE_CHECKING

from atoll.concurrency import forks
from atoll.search.thread_pool import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.search.mapped_bytes import Memory

    Count = Callable[[int, int], list[int]]
    """Takes two byte offsets; returns the number of line ends in each block between them."""

BLOCK = 1 << 16
"""Bytes of a block: it and the temporary array fit into a core's cache."""
_STRETCH = 256
"""Blocks that one thread counts as one job."""
_AT_ONCE = 4 * BLOCK
_LINE_END = 10


class Lines:
    """Line ends of some bytes, counted from the front."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._lock = memory, forks.new_lock()
        self._before = array("Q", [0])
        """Line ends before each counted block, and before the next one."""
        self._blocks = -(-memory.size // BLOCK)
        self._counter = make_counter(memory)

    def count_until(self, byte: int) -> None:
        """Count all blocks before this byte."""
        with self._lock:
            self._count(min(byte // BLOCK, self._blocks))

    def of(self, byte: int) -> int:
        """Return the number of the line that contains this byte; the first is 1."""
        self.count_until(byte)
        block = min(byte // BLOCK, self._blocks)
        return self._before[block] + sum(self._counter(block * BLOCK, byte)) + 1

    def of_all(self, places: list[int]) -> list[int]:
        """Return the line numbers of bytes in order; counts from one to the next if shorter."""
        numbers: list[int] = []
        for number, byte in enumerate(places):
            before = places[number - 1] if number else -BLOCK
            if byte - before < BLOCK:
                numbers.append(numbers[-1] + self._memory.part(before, byte).count(b"\n"))
            else:
                numbers.append(self.of(byte))
        return numbers

    def start(self, number: int) -> int:
        """Return the byte at which a line begins; the size if there are fewer lines."""
        ends = number - 1
        with self._lock:
            while self._before[-1] < ends and len(self._before) <= self._blocks:
                self._count(min(len(self._before) - 1 + 4 * _STRETCH, self._blocks))
            block = bisect_left(self._before, ends) - 1
        if ends < 1 or self._before[-1] < ends:
            return 0 if ends < 1 else self._memory.size
        at = block * BLOCK - 1
        for _ in range(ends - self._before[block]):
            at = self._memory.find_byte(_LINE_END, at + 1, self._memory.size)
        return at + 1

    def _count(self, blocks: int) -> None:
        starts = range(len(self._before) - 1, blocks, _STRETCH)
        ends = min(blocks * BLOCK, self._memory.size)
        stretches = [(at * BLOCK, min((at + _STRETCH) * BLOCK, ends)) for at in starts]
        for counts in run(lambda part: self._counter(*part), stretches):
            for count in counts:
                self._before.append(self._before[-1] + count)


def make_counter(memory: Memory) -> Count:
    """Return a function that counts line ends by block; numpy, if installed, is 4 times faster."""
    if find_spec("numpy") is None or not memory.size:
        return lambda start, end: [
            memory.part(at, min(at + BLOCK, end)).count(b"\n") for at in range(start, end, BLOCK)
        ]
    import numpy as np  # noqa: PLC0415 - an extra

    data = np.frombuffer(memory.buffer, np.uint8)[: memory.size]

    def count(start: int, end: int) -> list[int]:
        counts = []
        for at in range(start, end, _AT_ONCE):  # numpy compares without the GIL
            ends = data[at : min(at + _AT_ONCE, end)] == _LINE_END
            places = range(0, len(ends), BLOCK)
            counts += [int(np.count_nonzero(ends[i : i + BLOCK])) for i in places]
        return counts

    return count
