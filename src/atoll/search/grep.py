"""Finds the lines of a context that match a pattern: in order, in threads, within limits.

A line is one hit. If a line continues for more than REACH bytes after a hit, the search goes on
there, so that a context without line ends can be searched too.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from threading import Thread
from typing import TYPE_CHECKING, Generic, TypeVar

from atoll.concurrency import forks
from atoll.errors import ConfigError
from atoll.search.blocks import SECONDS, cores
from atoll.search.patterns import PIECE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from atoll.search.encoded import Characters, Encoded
    from atoll.search.memory import Memory
    from atoll.search.patterns import Finder

    Span = tuple[int, int]
    Count = Callable[[int, int], list[int]]
    """Takes two byte offsets; returns the number of line ends in each block between them."""


Job = TypeVar("Job")
Done = TypeVar("Done")
MAX_THREADS = 4


def run(work: Callable[[Job], Done], jobs: Iterable[Job]) -> list[Done]:
    """Return the results of all jobs, in order."""
    return ThreadPool(work, jobs, lambda _: 0, 1).run()


class ThreadPool(Generic[Job, Done]):
    """Works until the results, in order, reach the weight `enough`; later ones are dropped."""

    def __init__(
        self,
        work: Callable[[Job], Done],
        jobs: Iterable[Job],
        weigh: Callable[[Done], int],
        enough: int,
    ) -> None:
        self._work, self._weigh, self._enough = work, weigh, enough
        self._jobs, self._numbers = iter(jobs), count()
        self._lock, self._stopped = forks.new_lock(), False
        self._early: dict[int, Done] = {}
        self._done: list[Done] = []
        self._weight = self._early_weight = 0
        self._failure: BaseException | None = None

    def run(self) -> list[Done]:
        """Return the results in order, until `enough` is reached."""
        # A first job by the caller alone: if it finds enough, no thread is started.
        if self._step() and not self._stopped:
            helpers = [Thread(target=self._loop) for _ in range(threads() - 1)]
            for helper in helpers:
                helper.start()
            self._loop()
            for helper in helpers:
                helper.join()
        if self._failure is not None:
            raise self._failure
        return self._done

    def _loop(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as exc:  # noqa: BLE001 - it is raised where the caller waits
            self._failure, self._stopped = exc, True

    def _step(self) -> bool:
        with self._lock:
            # The results that other threads are working on complete it: more would be dropped.
            if self._stopped or self._weight + self._early_weight >= self._enough:
                return False
            job = next(self._jobs, None)
            number = next(self._numbers)
        if job is None:
            return False
        done = self._work(job)
        with self._lock:
            self._add(number, done)
        return True

    def _add(self, number: int, done: Done) -> None:
        self._early[number] = done
        self._early_weight += self._weigh(done)
        while not self._stopped and len(self._done) in self._early:
            first = self._early.pop(len(self._done))
            self._done.append(first)
            weight = self._weigh(first)
            self._weight, self._early_weight = self._weight + weight, self._early_weight - weight
            self._stopped = self._weight >= self._enough


def threads() -> int:
    """Return how many threads work at once, the caller included."""
    return max(1, min(MAX_THREADS, cores()))


OVERLAP = 1 << 16
"""Bytes by which chunks of one very long line overlap (at most half): the longest match there."""
_LINE_END = 10


def cut(memory: Memory, spans: Iterable[Span], size: int = PIECE) -> Iterator[Span]:
    """Yield the chunks of these spans, in order."""
    for start, end in spans:
        at = start
        while at < end:
            stop, following = _next_chunk(memory, at, end, size)
            yield at, stop
            at = following


def _next_chunk(memory: Memory, at: int, end: int, size: int) -> Span:
    stop = at + size
    if stop >= end:
        return end, end
    line_end = memory.find_last_byte(_LINE_END, at, stop)
    if line_end >= 0:
        return line_end + 1, line_end + 1
    return stop, stop - min(OVERLAP, size // 2)


def whole_lines(memory: Memory, spans: Iterable[Span], within: Span) -> list[Span]:
    """Return the spans extended to whole lines (by a chunk at most), and joined if they touch."""
    grown: list[Span] = []
    for start, end in spans:
        first, last = _grow(memory, max(start, within[0]), min(end, within[1]), within)
        if grown and first <= grown[-1][1]:
            first, _ = grown.pop()
        if first < last:
            grown.append((first, last))
    return grown


def _grow(memory: Memory, start: int, end: int, within: Span) -> Span:
    lowest, highest = max(start - PIECE, within[0]), min(end + PIECE, within[1])
    line_end = memory.find_last_byte(_LINE_END, lowest, start)
    first = line_end + 1 if line_end >= 0 else lowest
    line_end = memory.find_byte(_LINE_END, end, highest)
    return first, line_end + 1 if line_end >= 0 else highest


BLOCK = 1 << 16
"""Bytes of a block: it and the temporary array fit into a core's cache."""
_JOB_BLOCKS = 256
"""Blocks that one thread counts as one job."""
_AT_ONCE = 4 * BLOCK


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
                self._count(min(len(self._before) - 1 + 4 * _JOB_BLOCKS, self._blocks))
            block = bisect_left(self._before, ends) - 1
        if ends < 1 or self._before[-1] < ends:
            return 0 if ends < 1 else self._memory.size
        at = block * BLOCK - 1
        for _ in range(ends - self._before[block]):
            at = self._memory.find_byte(_LINE_END, at + 1, self._memory.size)
        return at + 1

    def _count(self, blocks: int) -> None:
        starts = range(len(self._before) - 1, blocks, _JOB_BLOCKS)
        if not starts:
            return
        ends = min(blocks * BLOCK, self._memory.size)
        stretches = [(at * BLOCK, min((at + _JOB_BLOCKS) * BLOCK, ends)) for at in starts]
        for counts in run(lambda part: self._counter(*part), stretches):
            for ends_in_block in counts:
                self._before.append(self._before[-1] + ends_in_block)


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


MAX_HITS = 10_000
WIDTH = 200
"""Characters of a line that a hit shows, around the match."""
REACH = 400
_BEFORE = WIDTH // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A line that matches; offsets are characters of the context."""

    line: int
    start: int
    end: int
    text: str
    """The line, or the part of a long line around the match."""
    at: int
    """Offset at which `text` begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grep:
    """The hits of a search."""

    hits: tuple[Hit, ...]
    more: bool
    """Whether there may be more hits: there are too many, or the time was over."""
    total: int
    """How many hits there are; a lower bound if not `counted`."""
    counted: bool = True
    scanned: Span
    """The ranges of characters that were searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The matches in one chunk, and how far it was searched."""

    spans: list[Span]
    end: int
    whole: bool = True
    count: int = 0
    """How many matches there are, if only the count is needed."""


class Scan:
    """One search of some spans of the bytes."""

    def __init__(
        self, finder: Finder, text: Encoded, *, most: int, seconds: float = SECONDS
    ) -> None:
        self._first, self._memory, self._utf8 = finder.first, text.memory, text.utf8
        self._piece, self._cut_short = finder.piece, False
        self._room, self._until = most + 1, time.monotonic() + seconds

    def run(self, parts: list[Span]) -> tuple[list[Span], int | None]:
        """Return the matches, up to one more than asked for, and where the search stopped early."""
        if len(parts) == 1 and parts[0][1] - parts[0][0] <= self._piece:
            pieces = [self._search(parts[0])]  # too little to share with threads
        else:
            pieces = ThreadPool(
                self._search, self._in_time(parts), lambda piece: len(piece.spans), self._room
            ).run()
        result: list[Span] = []
        resume, ended = 0, parts[0][0] if parts else 0
        for piece in pieces:
            result += [span for span in piece.spans if span[0] >= resume]
            resume = self._resume(result[-1][1], self._memory.size) if result else 0
            ended = piece.end
            if not piece.whole:
                break
        return result[: self._room], ended if self._cut_short else None

    def count(self, parts: list[Span]) -> tuple[int, bool]:
        """Return how many lines match, and whether all parts were searched in time."""
        work = ThreadPool(self._count, self._in_time(parts), lambda _: 0, 1)
        total = sum(piece.count for piece in work.run())
        return total, not self._cut_short

    @property
    def _late(self) -> bool:
        return time.monotonic() > self._until

    def _in_time(self, parts: list[Span]) -> Iterator[Span]:
        for piece in cut(self._memory, parts, self._piece):
            if self._late:
                self._cut_short = True
                return
            yield piece

    def _search(self, piece: Span) -> Piece:
        at, end = piece
        spans: list[Span] = []
        while at < end and len(spans) < self._room:
            span = self._first(self._memory, at, end)
            if span is None:
                break
            spans.append(span)
            at = self._resume(span[1], end)
            if self._late:
                self._cut_short = True
                return Piece(spans=spans, end=at, whole=False)
        return Piece(spans=spans, end=end)

    def _count(self, piece: Span) -> Piece:
        at, end = piece
        number = 0
        while at < end and (span := self._first(self._memory, at, end)) is not None:
            number += 1
            at = self._resume(span[1], end)
            if self._late:
                self._cut_short = True
                break
        return Piece(spans=[], end=at, count=number)

    def _resume(self, at: int, end: int) -> int:
        """Return where the search for the next hit begins after a match that ends at `at`."""
        line_end = self._memory.find_byte(_LINE_END, at, min(at + REACH, end))
        if line_end >= 0:
            return line_end + 1
        at = min(at + REACH, end)
        while self._utf8 and at < end and self._memory.buffer[at] & 0xC0 == 0x80:
            at += 1
        return at


def line_around(characters: Characters, start: int) -> tuple[str, int]:
    """Return the line of a character, or the part of a long line around it, and its offset."""
    left = max(start - WIDTH, 0)
    before = characters.text(left, start).rpartition("\n")[2]
    after = characters.text(start, start + WIDTH).partition("\n")[0]
    if len(before) + len(after) > WIDTH:
        keep = max(_BEFORE, WIDTH - len(after))
        before = before[-keep:]
    return (before + after)[:WIDTH].removesuffix("\r"), start - len(before)


def check_most(most: int) -> None:
    """Raise ConfigError if `most` is not a valid number of hits."""
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MAX_HITS:
        raise ConfigError(f"most must be a whole number from 1 to {MAX_HITS:,}, not {most!r}")
