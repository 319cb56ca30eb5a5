"""Which line an offset is in: line ends counted block by block, no further than was asked for."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING

from atoll.explore.crew import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.explore.memory import Memory

BLOCK = 1 << 16
"""Bytes that are counted at once: they and what is made of them stay near the core."""
_STRETCH = 256
"""Blocks that one thread counts before it takes the next."""
_LINE_END = 10


class Lines:
    """Line ends of some bytes, counted from the front."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._lock = memory, Lock()
        self._before = array("Q", [0])
        """Line ends before each block that is counted, and before the next."""
        self._blocks = -(-memory.size // BLOCK)

    def count_until(self, byte: int) -> None:
        """Count all blocks before this byte."""
        with self._lock:
            self._count(min(byte // BLOCK, self._blocks))

    def of(self, byte: int) -> int:
        """The number of the line that this byte is in; the first is 1."""
        self.count_until(byte)
        block = min(byte // BLOCK, self._blocks)
        return self._before[block] + self._memory.part(block * BLOCK, byte).count(b"\n") + 1

    def start(self, number: int) -> int:
        """The byte that a line begins with; the size if there are fewer lines."""
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
        first = len(self._before) - 1
        starts = range(first, blocks, _STRETCH)
        stretches = [range(at, min(at + _STRETCH, blocks)) for at in starts]
        for counts in run(counter(self._memory), stretches):
            for count in counts:
                self._before.append(self._before[-1] + count)


def counter(memory: Memory) -> Callable[[range], list[int]]:
    """What counts the line ends of blocks: numpy where it is installed, four times as fast."""
    if find_spec("numpy") is None or not memory.size:
        return lambda blocks: [_plain_count(memory, block) for block in blocks]
    import numpy as np  # noqa: PLC0415 - an extra

    data = np.frombuffer(memory.buffer, np.uint8)[: memory.size]

    def count(blocks: range) -> list[int]:
        return [
            int(np.count_nonzero(data[block * BLOCK : (block + 1) * BLOCK] == _LINE_END))
            for block in blocks
        ]

    return count


def _plain_count(memory: Memory, block: int) -> int:
    return memory.part(block * BLOCK, (block + 1) * BLOCK).count(b"\n")
