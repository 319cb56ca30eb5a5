"""The stdio framing: a marker line, JSON, a marker line. Pure: bytes in, events out.

A marker counts only as a whole line. JSON has no raw line ends in strings, so no content can end
its frame.

They cross descriptors of any kind: pipes, sockets, terminals, files. A descriptor is watched only
during a read or write, so the event loop does not keep its owner alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

READY = b">>> READY <<<"
MAX_FRAME_BYTES = 128 << 20
MAX_NOISE_BYTES = 200
Kind = Literal["REQUEST", "RESPONSE"]
CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Frame:
    """The text between two markers."""

    text: bytes


@dataclass(frozen=True, slots=True)
class BrokenFrame:
    """An incomplete or invalid frame, and the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Noise:
    """A line outside of any frame, cut."""

    text: bytes


Event = Frame | BrokenFrame | Noise


def encode(kind: Kind, message: Mapping[str, Any]) -> bytes:
    """Return a message in its frame: the JSON is one line of ASCII."""
    return b"%b\n%b\n%b\n" % (_start(kind), json.dumps(message).encode("ascii"), _end(kind))


class FrameParser:
    """Splits a stream into frames, whatever the sizes of the reads."""

    def __init__(self, kind: Kind, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._start, self._end = _start(kind), _end(kind)
        self._max_bytes = max_bytes
        self._lines = _LineCutter(max_bytes)
        self._frame: list[bytes] | None = None
        self._size = 0

    def feed(self, data: bytes) -> list[Event]:
        """Yield the events that `data` completes, in order."""
        return [event for line in self._lines.feed(data) for event in self._take(line)]

    def _take(self, line: bytes) -> Iterator[Event]:
        marker = line.strip() if len(line) < MAX_NOISE_BYTES else b""
        if marker == self._start:
            if self._frame is not None:
                yield BrokenFrame("a frame began inside another")
            self._frame, self._size = [], 0
        elif self._frame is None:
            if line.strip():
                yield Noise(line[:MAX_NOISE_BYTES].strip())
        elif marker == self._end:
            yield self._finish(self._frame)
            self._frame = None
        else:
            self._keep(self._frame, line)

    def _keep(self, frame: list[bytes], line: bytes) -> None:
        self._size += len(line) + 1
        if self._size > self._max_bytes:
            frame.clear()  # skip it until its end
        else:
            frame.append(line)

    def _finish(self, frame: list[bytes]) -> Event:
        if self._size > self._max_bytes:
            return BrokenFrame(f"a frame over {self._max_bytes:,} bytes")
        return Frame(b"\n".join(frame))


class _LineCutter:
    """Splits a stream into lines; a line that is too long is cut just above the cap."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        *complete, rest = data.split(b"\n")
        for part in complete:
            self._keep(part)
            yield b"".join(self._parts)
            self._parts, self._size = [], 0
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        room = self._max_bytes + 1 - self._size
        if part and room > 0:
            self._parts.append(part[:room])
            self._size += len(part[:room])


def _start(kind: Kind) -> bytes:
    return b">>> %b_START <<<" % kind.encode()


def _end(kind: Kind) -> bytes:
    return b">>> %b_END <<<" % kind.encode()


class Pipes:
    """One descriptor to read, one to write; close() closes both."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._waiting: set[asyncio.Future[None]] = set()
        self._close_both = weakref.finalize(self, _close, read_fd, write_fd)
        for fd in (read_fd, write_fd):
            if _is_pipe(fd):  # other programs share a terminal and expect it to block
                os.set_blocking(fd, False)

    async def read(self) -> bytes:
        """Return bytes as soon as there are any; b"" at the end."""
        while True:
            await self._ready(self._read_fd, write=False)
            with contextlib.suppress(BlockingIOError):
                return os.read(self._read_fd, CHUNK)

    async def write(self, data: bytes) -> None:
        """Write all of `data`; BrokenPipeError if the reader has closed its end."""
        view = memoryview(data)
        while view:
            self._check_open()
            try:
                view = view[os.write(self._write_fd, view[:CHUNK]) :]
            except BlockingIOError:
                await self._ready(self._write_fd, write=True)

    def on_hangup(self, callback: Callable[[], object]) -> None:
        """Call back once if the reader closes its end; works for pipes only."""
        if not stat.S_ISFIFO(os.fstat(self._write_fd).st_mode):
            return
        loop = asyncio.get_running_loop()

        def hung_up() -> None:
            loop.remove_reader(self._write_fd)
            callback()

        loop.add_reader(self._write_fd, hung_up)  # readable when the pipe breaks

    def close(self) -> None:
        """Close both descriptors and fail pending calls. Calling it again does nothing."""
        if not self._close_both.alive:
            return
        loop = asyncio.get_running_loop()
        for fd in (self._read_fd, self._write_fd):
            loop.remove_reader(fd)
            loop.remove_writer(fd)
        self._close_both()
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(BrokenPipeError("closed meanwhile"))

    def _check_open(self) -> None:
        if not self._close_both.alive:
            raise BrokenPipeError("closed")

    async def _ready(self, fd: int, *, write: bool) -> None:
        self._check_open()
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        watch, forget = (
            (loop.add_writer, loop.remove_writer)
            if write
            else (loop.add_reader, loop.remove_reader)
        )
        try:
            watch(fd, lambda: None if ready.done() else ready.set_result(None))
        except PermissionError:  # a regular file, which is always ready
            return
        self._waiting.add(ready)
        try:
            await ready
        finally:
            self._waiting.discard(ready)
            if self._close_both.alive:
                forget(fd)


def _is_pipe(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
