"""Searches files for lines: reads them into one buffer and scans it whenever it is full.

Small files share the buffer, because one scan of many bytes is cheaper than many small scans. A
large file is scanned in blocks of whole lines. SECURITY: files may change during the search. They
are read, never mapped, and only up to the size that they had when they were opened.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING

from atoll.guest.shared import texts
from atoll.guest.shared.search import MAX_LINE, PROBE_BYTES, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.guest.shared.search import Find
    from atoll.search.patterns import Pattern

    Hit = list[str | int]
    """Path, line, text."""

BLOCK = 1 << 19
"""Bytes that are scanned at once: the page cache's copy and the buffer fit into a core's cache."""
PIECE = 1 << 16
LARGE = 16 << 20
"""Bytes of a file for which importing numpy pays: it counts line ends three times as fast."""
VERY_LARGE, BLOCK_OF_TWO = 64 << 20, 1 << 21
"""Bytes of a file for which a second thread pays, and those that each of two threads scans at once:
with smaller blocks they wait for each other's GIL more often than they gain."""
_SHORT = 1 << 11
"""Bytes below which bytearray.count is the fastest way to count line ends."""
SECONDS = 60.0
"""Seconds that a search may take: endless files and folders that keep moving do not hold it."""
_LINE_END = 10


def cores() -> int:
    """Return how many cores this process may use."""
    usable = os.cpu_count() or 1
    if sys.platform == "linux":
        usable = len(os.sched_getaffinity(0))
    return usable


class SearchBuffer:
    """The buffer that files are read into, and the matches found in it so far."""

    def __init__(self, pattern: Pattern, room: int, stop: Event) -> None:
        """`room` is the number of hits after which the search stops."""
        self.pattern, self._room, self._stop = pattern, room, stop
        self._until = time.monotonic() + SECONDS
        self.hits: list[Hit] = []
        self.headed = False
        """Whether only the first LONGEST_LINE bytes of some line were searched."""
        self.met_large = False
        """Whether there was a file of LARGE bytes or more."""
        self._used = 0
        self._paths: list[str] = []
        self._starts: list[int] = []
        self.reserve(BLOCK)

    @property
    def full(self) -> bool:
        """Whether there are as many hits as were asked for."""
        return len(self.hits) >= self._room

    @property
    def wanted(self) -> bool:
        """Whether the search should go on."""
        return not self.full and not self.late and not self._stop.is_set()

    @property
    def late(self) -> bool:
        """Whether the search has taken longer than SECONDS."""
        return time.monotonic() > self._until

    def reserve(self, size: int) -> None:
        """Grow the buffer to `size` bytes and a line end; its content stays."""
        old = getattr(self, "buffer", bytearray())
        if len(old) <= size:
            self.buffer = old + bytes(size + 1 - len(old))
            self.view = memoryview(self.buffer)
            self._count = _counter(self.buffer)

    def add(self, path: str, fd: int) -> None:
        """Read a file into the buffer; scan the buffer first if it does not fit."""
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or not 0 < info.st_size <= texts.MAX_FILE_BYTES:
            return
        if info.st_size >= BLOCK - self._used:
            self.scan()
        if info.st_size >= BLOCK:
            self.met_large |= info.st_size >= LARGE
            search_large(self, path, fd, info.st_size)
        elif read := self.read(fd, self._used, info.st_size, 0):
            self._paths.append(path)
            self._starts.append(self._used)
            self._used = self.ended(self._used + read)

    def scan(self) -> None:
        """Collect the hits of the files in the buffer, and empty it."""
        if not self._used:
            return
        find, at = self.pattern.within(self.buffer, self._used), 0
        self._starts.append(self._used)
        while at < self._used and self.wanted:
            place = find(at)
            if place < 0:
                break
            number = bisect_right(self._starts, place) - 1
            start, at = self._starts[number : number + 2]
            if self.buffer.find(0, start, min(start + PROBE_BYTES, at)) < 0:
                self.collect(self._paths[number], find, (start, at), 1)
        self._paths, self._starts, self._used = [], [], 0

    def collect(self, path: str, find: Find, part: tuple[int, int], line: int) -> tuple[int, int]:
        """Collect the hits of a part of the buffer, whose first line has the number `line`.

        Return the number of the last line that was counted, and the offset at which it begins.
        """
        at, end = part
        counted = at
        while at < end and not self.full:
            place = find(at)
            if not 0 <= place < end:
                break
            begin = self.buffer.rfind(b"\n", at, place) + 1 or at
            line, counted = line + self.line_ends(counted, begin), begin
            at = self.buffer.find(b"\n", place) + 1
            text = shown(bytes(self.view[begin : min(at - 1, begin + 4 * MAX_LINE)]))
            self.hits.append([path, line, text])
        return line, counted

    def read(self, fd: int, start: int, size: int, offset: int) -> int:
        """Read up to `size` bytes of a file from `offset` on into the buffer; return how many."""
        end, at = start + size, start
        while at < end:
            read = os.preadv(fd, [self.view[at:end]], offset + at - start)
            if not read:
                break
            at += read
        return at - start

    def for_other_half(self) -> SearchBuffer | None:
        """Return a buffer for another thread that searches the same file; None if it cannot."""
        alone = not self.pattern.is_shareable or cores() == 1
        if alone or "numpy" not in sys.modules:
            return None
        other = SearchBuffer(self.pattern, self._room, Event())
        other._until = self._until
        return other

    def stop(self) -> None:
        """End the search in this buffer; to be called by another thread."""
        self._stop.set()

    def take(self, other: SearchBuffer, lines: int) -> None:
        """Add the hits of a later part of the same file, which has `lines` lines before it."""
        hits = other.hits[: self._room - len(self.hits)]
        self.hits += [[path, int(line) + lines, text] for path, line, text in hits]

    def ended(self, end: int) -> int:
        """Add a line end at `end` if there is none; return where the text ends then."""
        if self.buffer[end - 1] == _LINE_END:
            return end
        self.buffer[end] = _LINE_END
        return end + 1

    def line_ends(self, start: int, end: int) -> int:
        """Return how many line ends are in a part of the buffer."""
        if end - start < _SHORT:
            return self.buffer.count(_LINE_END, start, end)
        return self._count(start, end)


class LargeFile:
    """A file that is larger than the buffer: searched block by block."""

    def __init__(
        self, search: SearchBuffer, path: str, fd: int, part: tuple[int, int], block: int
    ) -> None:
        """`part` is what to search: where it begins, which is a line's beginning, and its end."""
        self._search, self._path, self._fd = search, path, fd
        start, end = part
        self._left, self._passed, self._block = end - start, start, block
        self._line, self._counted, self._hit = 1, start, False

    def scan(self) -> None:
        """Collect the hits of the part, block by block."""
        search, kept = self._search, 0
        while (self._left or kept) and search.wanted:
            filled = kept + self._fill(kept)
            end = search.buffer.rfind(b"\n", 0, filled) + 1
            if not end and filled > texts.LONGEST_LINE:
                kept = self._scan_head(filled)
                continue
            if not self._left and filled:
                end = search.ended(filled)
            if end:
                self._scan_until(end, self._passed - filled)
            else:
                self._block = min(2 * self._block, texts.LONGEST_LINE + 1)
            kept = self._keep(end, filled)

    def _fill(self, kept: int) -> int:
        self._search.reserve(self._block)
        size = min(self._left, self._block - kept)
        read = self._search.read(self._fd, kept, size, self._passed)
        self._left, self._passed = self._left - read if read else 0, self._passed + read
        return read

    def _keep(self, start: int, filled: int) -> int:
        """Move the bytes that are not scanned yet to the front; return how many."""
        kept = max(filled - start, 0)
        self._search.view[:kept] = bytes(self._search.view[start : start + kept])
        return kept

    def _scan_until(self, end: int, offset: int, *, whole: bool = True) -> None:
        """Scan the buffer up to `end`; it begins at `offset` in the file.

        Lines are counted only after the first hit: a file without one needs no line numbers.
        """
        search = self._search
        find = search.pattern.within(search.buffer, end)
        place = find(0)
        self._hit |= place >= 0
        if not self._hit:
            return
        self._count_until(offset)
        line, counted = self._line, 0
        if place >= 0:
            counted = search.buffer.rfind(b"\n", 0, place) + 1
            line += search.line_ends(0, counted)
            line, counted = search.collect(self._path, find, (counted, end), line)
        if whole:
            self._line, self._counted = line + search.line_ends(counted, end), offset + end

    def lines_until(self, offset: int) -> int:
        """Return how many lines end before `offset`, where the part ends."""
        self._count_until(offset)
        return self._line - 1

    def _count_until(self, offset: int) -> None:
        """Count the lines up to `offset`: read blocks again that were scanned without counting."""
        while self._counted < offset:
            piece = os.pread(self._fd, min(PIECE, offset - self._counted), self._counted)
            if not piece:
                break  # the file was truncated meanwhile
            self._line, self._counted = self._line + _line_ends(piece), self._counted + len(piece)

    def _scan_head(self, filled: int) -> int:
        """Scan the head of a line that is too long, and skip its rest.

        Return how many bytes after the line are in the buffer.
        """
        search, end = self._search, texts.LONGEST_LINE
        search.headed = True
        search.buffer[end] = _LINE_END
        self._scan_until(end + 1, self._passed - filled, whole=False)
        self._block = BLOCK
        while self._left and search.wanted:
            read = self._fill(0)
            end = search.buffer.find(b"\n", 0, read)
            if end >= 0:
                return self._keep(end + 1, read)
        return 0


def search_large(search: SearchBuffer, path: str, fd: int, size: int) -> None:
    """Collect the hits of a large file, if it is a text; of a very large one in two threads.

    Most of the time goes to reading and to counting lines, for which no thread needs the GIL.
    """
    if b"\0" in os.pread(fd, PROBE_BYTES, 0):
        return
    middle = _line_begin(fd, size // 2) if size >= VERY_LARGE else 0
    other = search.for_other_half() if middle else None
    if other is None:
        LargeFile(search, path, fd, (0, size), BLOCK).scan()
        return
    first = LargeFile(search, path, fd, (0, middle), BLOCK_OF_TWO)
    second = LargeFile(other, path, fd, (middle, size), BLOCK_OF_TWO)
    with ThreadPoolExecutor(1, "atoll-grep") as threads:
        later = threads.submit(second.scan)
        try:
            first.scan()
        finally:
            if not search.wanted:
                other.stop()
        later.result()
    search.headed |= other.headed
    if other.hits and not search.full:
        search.take(other, first.lines_until(middle))


def _line_begin(fd: int, at: int) -> int:
    """Return where the first line after `at` begins; 0 if it is not near."""
    return at + end if (end := os.pread(fd, PIECE, at).find(b"\n") + 1) else 0


def load_numpy() -> None:
    """Import numpy, if it is installed, for later searches.

    It takes a tenth of a second, and cannot be done while this thread acts as a guest's user.
    """
    with suppress(ImportError):
        import numpy  # noqa: F401, ICN001, PLC0415 - an extra


def _counter(buffer: bytearray) -> Callable[[int, int], int]:
    """Return a function that counts the line ends in a part of the buffer, by numpy if loaded."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "count_nonzero"):  # another thread is importing it
        view = memoryview(buffer)
        return lambda start, end: sum(
            _line_ends(bytes(view[at : min(at + PIECE, end)])) for at in range(start, end, PIECE)
        )
    array, result = numpy.frombuffer(buffer, "u1"), numpy.empty(len(buffer), "?")
    equal, count, line_end = numpy.equal, numpy.count_nonzero, numpy.uint8(_LINE_END)
    return lambda start, end: int(
        count(equal(array[start:end], line_end, out=result[: end - start]))
    )


def _line_ends(data: bytes) -> int:
    """Count line ends; for a PIECE this is a third faster than bytes.count."""
    return len(data) - len(data.replace(b"\n", b""))
