"""Search files for lines: read them into one buffer and scan it whenever it is full.

Small files lie in it side by side, as one look at much is cheaper than many at little; a large one
is looked through line by line, as many as fit. SECURITY: files may change meanwhile. They are
read, never mapped, and no further than they went when they were opened.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.guest import texts
from atoll.guest.search import MAX_LINE, PROBE_BYTES, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

    from atoll.files.matchers import Matcher
    from atoll.guest.search import Find

    Hit = list[str | int]
    """Path, line, text."""

BLOCK = 1 << 19
"""Bytes that are looked through at once: what is read and what it is read to fit a core's cache."""
PIECE = 1 << 16
LARGE = 16 << 20
"""Bytes of a file that is worth loading numpy for, to count line ends three times as fast."""
_SHORT = 1 << 11
"""Bytes in which counting line ends one by one is the fastest."""
SECONDS = 60.0
"""How long a search may take: files without end, and folders that move, are no way to hold us."""
_LINE_END = 10


class SearchBuffer:
    """The buffer that files are read into, and the matches found in it so far."""

    def __init__(self, matcher: Matcher, room: int, stop: Event) -> None:
        """`room`: how many hits are of use."""
        self.matcher, self._room, self._stop = matcher, room, stop
        self._until = time.monotonic() + SECONDS
        self.hits: list[Hit] = []
        self.headed = False
        """Whether only the head of some line was searched."""
        self.met_large = False
        """Whether there was a file of LARGE bytes or more."""
        self._used = 0
        self._paths: list[str] = []
        self._starts: list[int] = []
        self.reserve(BLOCK)

    @property
    def full(self) -> bool:
        """Whether no more hits are of use."""
        return len(self.hits) >= self._room

    @property
    def wanted(self) -> bool:
        """Whether to go on."""
        return not self.full and not self.late and not self._stop.is_set()

    @property
    def late(self) -> bool:
        """Whether it has taken too long."""
        return time.monotonic() > self._until

    def reserve(self, size: int) -> None:
        """Have a buffer for so many bytes and a line's end; what is in it stays."""
        old = getattr(self, "buffer", bytearray())
        if len(old) <= size:
            self.buffer = old + bytes(size + 1 - len(old))
            self.view = memoryview(self.buffer)
            self._count = _counter(self.buffer)

    def add(self, path: str, fd: int) -> None:
        """Take a file in, after a look at those that are there if it does not fit beside them."""
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or not 0 < info.st_size <= texts.MAX_FILE_BYTES:
            return
        if info.st_size >= BLOCK - self._used:
            self.look()
        if info.st_size >= BLOCK:
            self.met_large |= info.st_size >= LARGE
            LargeFile(self, path, fd, info.st_size).look()
        elif read := self.read(fd, self._used, info.st_size):
            self._paths.append(path)
            self._starts.append(self._used)
            self._used = self.ended(self._used + read)

    def look(self) -> None:
        """Look through the files that are there, and let go of them."""
        if not self._used:
            return
        find, at = self.matcher(self.buffer, self._used), 0
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
        """Take the hits of a part, whose first line has this number; how far it has counted."""
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

    def read(self, fd: int, start: int, size: int) -> int:
        """How many bytes of a file there were; they are in the buffer from `start` on."""
        end, at = start + size, start
        while at < end and (read := os.readv(fd, [self.view[at:end]])):
            at += read
        return at - start

    def ended(self, end: int) -> int:
        """Where the text ends that ends here, now that its last line is ended."""
        if self.buffer[end - 1] == _LINE_END:
            return end
        self.buffer[end] = _LINE_END
        return end + 1

    def line_ends(self, start: int, end: int) -> int:
        """How many there are in a part of the buffer."""
        if end - start < _SHORT:
            return self.buffer.count(_LINE_END, start, end)
        return self._count(start, end)


class LargeFile:
    """A file that is larger than the buffer: searched block by block."""

    def __init__(self, search: SearchBuffer, path: str, fd: int, size: int) -> None:
        self._search, self._path, self._fd = search, path, fd
        self._left, self._passed, self._block = size, 0, BLOCK
        self._line, self._counted, self._hit = 1, 0, False

    def look(self) -> None:
        """Take its hits, block by block, if it is a text."""
        search, kept = self._search, 0
        if b"\0" in os.pread(self._fd, PROBE_BYTES, 0):
            return
        while (self._left or kept) and search.wanted:
            filled = kept + self._fill(kept)
            end = search.buffer.rfind(b"\n", 0, filled) + 1
            if not end and filled > texts.LONGEST_LINE:
                kept = self._look_at_head(filled)
                continue
            if not self._left and filled:
                end = search.ended(filled)
            if end:
                self._look_until(end, self._passed - filled)
            else:
                self._block = min(2 * self._block, texts.LONGEST_LINE + 1)
            kept = self._keep(end, filled)

    def _fill(self, kept: int) -> int:
        self._search.reserve(self._block)
        read = self._search.read(self._fd, kept, min(self._left, self._block - kept))
        self._left, self._passed = self._left - read if read else 0, self._passed + read
        return read

    def _keep(self, start: int, filled: int) -> int:
        """Move what is not looked at yet to the front."""
        kept = max(filled - start, 0)
        self._search.view[:kept] = bytes(self._search.view[start : start + kept])
        return kept

    def _look_until(self, end: int, offset: int, *, whole: bool = True) -> None:
        """Look at the front of the buffer, which is at `offset` in the file.

        Before the first hit no lines are counted: there may be none. After it all are, as they
        pass by: there will be more.
        """
        search = self._search
        find = search.matcher(search.buffer, end)
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

    def _count_until(self, offset: int) -> None:
        """Count the lines of blocks that were passed by uncounted: read them again."""
        while self._counted < offset:
            piece = os.pread(self._fd, min(PIECE, offset - self._counted), self._counted)
            if not piece:
                break  # it has been cut meanwhile
            self._line, self._counted = self._line + _line_ends(piece), self._counted + len(piece)

    def _look_at_head(self, filled: int) -> int:
        """Of a line that is too long, the head is searched; how much is kept of what follows."""
        search, end = self._search, texts.LONGEST_LINE
        search.headed = True
        search.buffer[end] = _LINE_END
        self._look_until(end + 1, self._passed - filled, whole=False)
        self._block = BLOCK
        while self._left and search.wanted:
            read = self._fill(0)
            end = search.buffer.find(b"\n", 0, read)
            if end >= 0:
                return self._keep(end + 1, read)
        return 0


def load_numpy() -> None:
    """Import numpy, if it is installed, for the searches to come.

    It takes a tenth of a second, and cannot be done while this thread acts as a guest's user.
    """
    with suppress(ImportError):
        import numpy  # noqa: F401, ICN001, PLC0415 - an extra


def _counter(buffer: bytearray) -> Callable[[int, int], int]:
    """Return what counts the line ends in a part of the buffer: with numpy, if it is loaded."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "count_nonzero"):  # it is being imported just now
        view = memoryview(buffer)
        return lambda start, end: sum(
            _line_ends(bytes(view[at : min(at + PIECE, end)])) for at in range(start, end, PIECE)
        )
    array, found = numpy.frombuffer(buffer, "u1"), numpy.empty(len(buffer), "?")
    equal, count, line_end = numpy.equal, numpy.count_nonzero, numpy.uint8(_LINE_END)
    return lambda start, end: int(
        count(equal(array[start:end], line_end, out=found[: end - start]))
    )


def _line_ends(data: bytes) -> int:
    """Faster than bytes.count by a third, as that looks at byte after byte; if it is a PIECE."""
    return len(data) - len(data.replace(b"\n", b""))
