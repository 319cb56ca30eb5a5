"""An index of the trigrams in each block of bytes: searches skip blocks that cannot match.

For each block, one bit for each of 65,536 classes of trigrams: 8 kB for 256 kB of text.
"""

from __future__ import annotations

from importlib.util import find_spec
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from atoll.concurrency import forks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atoll.search.memory import Memory

    Span = tuple[int, int]

BLOCK = 1 << 18
REACH = 64
"""Bytes of the next block that are indexed with this one: a text may cross the boundary."""
WORTH_IT = 8 << 20
"""Bytes below which a search is faster than starting a thread."""
_CLASSES = 1 << 16
_FACTORS = (31421, 6927, 257)


class Trigrams:
    """Built once, block by block, by the first caller or in a background thread."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._lock, self._stop = memory, forks.new_lock(), Event()
        self._table: Any = None
        self._thread: Thread | None = None

    def start(self) -> None:
        """Build the index in the background, if the text is large enough and it has not begun."""
        if self._memory.size < WORTH_IT or find_spec("numpy") is None:
            return
        with self._lock:
            if self._thread is None and self._table is None:
                self._thread = Thread(target=self._build, name="atoll-trigrams", daemon=True)
                self._thread.start()

    def build(self) -> None:
        """Wait until the index is built."""
        self.start()
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Stop building; an incomplete index is not used."""
        self._stop.set()

    @property
    def built(self) -> bool:
        """Whether the index is complete."""
        return self._table is not None

    def spans(self, texts: Iterable[bytes]) -> list[Span] | None:
        """Return the spans that may contain the rarest of these texts; None if not built."""
        if self._table is None:
            return None
        # The texts of one match may be in different blocks, so only one text is used: the rarest.
        blocks = [self._blocks(text) for text in texts if len(text) > 2]
        if not blocks:
            return None
        return [(at * BLOCK, (at + 1) * BLOCK + REACH) for at in min(blocks, key=len)]

    def _blocks(self, text: bytes) -> list[int]:
        there = self._table[:, 0] | 1
        for number in _classes_of(text[:REACH]):
            there &= self._table[:, number >> 3] >> (7 - (number & 7))
        blocks: list[int] = (there & 1).nonzero()[0].tolist()
        return blocks

    def _build(self) -> None:
        import numpy as np  # noqa: PLC0415 - an extra

        data = np.frombuffer(self._memory.buffer, np.uint8)[: self._memory.size]
        table = np.empty((-(-len(data) // BLOCK), _CLASSES // 8), np.uint8)
        first, second, third = (np.uint16(factor) for factor in _FACTORS)
        for row in range(len(table)):
            if self._stop.is_set():
                return
            part = data[row * BLOCK : (row + 1) * BLOCK + REACH].astype(np.uint16)
            there = np.zeros(_CLASSES, np.uint8)
            there[part[:-2] * first ^ part[1:-1] * second ^ part[2:] * third] = 1
            table[row] = np.packbits(there)
        self._table = table


def _classes_of(text: bytes) -> set[int]:
    first, second, third = _FACTORS
    triples = zip(text, text[1:], text[2:], strict=False)
    return {(a * first ^ b * second ^ c * third) & (_CLASSES - 1) for a, b, c in triples}
