"""Our standard streams for a guest: its output as it comes, our stdin as it reads; run and repl."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import sys
from typing import TYPE_CHECKING, TextIO

from atoll.cli.terminal.standard_streams import discard

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.types import SandboxResult

STREAM_LIMIT = 1 << 26
"""Characters of one stream of a cell that are passed on, and SandboxConfig.max_output_length."""
NEWLINE_SECONDS = 0.05
PIECE = 1 << 16
_CONTROLS = re.compile(r"\x1b(?!\[[\d;]*m)|[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f-\x9f]")


class GuestOutput:
    """The two streams of a sandbox; `on_failure` is called when one cannot be written."""

    def __init__(self) -> None:
        self.on_failure: Callable[[], None] = lambda: None
        self._out = LineWriter(sys.stdout, self._fail)
        self._err = LineWriter(sys.stderr, self._fail)
        self._mixed = _same_file(sys.stdout, sys.stderr)
        self.failure: OSError | None = None
        self.muted = False
        """Set while a cell runs whose output is not to be shown."""

    def stdout(self, line: str) -> None:
        """Pass on a line of the guest's stdout."""
        self._pass(line, self._out, self._err)

    def stderr(self, line: str) -> None:
        """Pass on a line of the guest's stderr."""
        self._pass(line, self._err, self._out)

    def finish(self, result: SandboxResult, *, end_lines: bool = False) -> bool:
        """End the cell, and with `end_lines` its last lines; return whether all was shown."""
        ended = [text.endswith("\n") or end_lines for text in (result.stdout, result.stderr)]
        whole = [self._out.finish(newline=ended[0]), self._err.finish(newline=ended[1])]
        return all(whole)

    def _pass(self, line: str, target: LineWriter, other: LineWriter) -> None:
        if self.muted:
            return
        if self.failure is not None:
            return  # the cell is being cancelled: the rest of its output is not wanted
        if self._mixed:
            other.end_line()
        target.line(line)

    def _fail(self, error: OSError) -> None:
        self.failure = error
        self.on_failure()


class LineWriter:
    """Writes lines that arrive without their newlines.

    Every line but the last of a cell had one, and only the result says whether the last had. So
    each newline is held back until the next line arrives, the cell ends, or a moment has passed.
    """

    def __init__(self, stream: TextIO, on_failure: Callable[[OSError], None]) -> None:
        self._stream, self._on_failure = stream, on_failure
        self._terminal = stream.isatty()
        self._left, self._cut = STREAM_LIMIT, False
        self._open = self._broken = False
        self._newline: asyncio.TimerHandle | None = None
        self._flush: asyncio.Handle | None = None

    def line(self, text: str) -> None:
        """Write a line, and hold back its newline."""
        if self._left <= 0:
            self._cut = True
            return
        self._left -= len(text) + 1
        text = harmless(text) if self._terminal else text
        self._write(f"\n{text}" if self._open else text)
        self._open = True
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_soon(self._end_burst)

    def end_line(self) -> None:
        """Write the newline that is held back, if there is one."""
        if self._open:
            self._open = False
            self._write("\n")
            self._flush_now()

    def finish(self, *, newline: bool) -> bool:
        """End the cell, and its last line with `newline`; return whether all was written."""
        for handle in (self._newline, self._flush):
            if handle is not None:
                handle.cancel()
        self._newline = self._flush = None
        if newline:
            self.end_line()
        self._flush_now()
        whole = not self._cut
        self._left, self._open, self._cut = STREAM_LIMIT, False, False
        return whole

    def _end_burst(self) -> None:
        """Flush once for all lines that arrived together."""
        self._flush = None
        self._flush_now()
        if self._newline is not None:
            self._newline.cancel()
        self._newline = asyncio.get_running_loop().call_later(NEWLINE_SECONDS, self.end_line)

    def _write(self, text: str) -> None:
        if not self._broken:
            try:
                self._stream.write(text)
            except OSError as exc:
                self._fail(exc)

    def _flush_now(self) -> None:
        if not self._broken:
            try:
                self._stream.flush()
            except OSError as exc:
                self._fail(exc)

    def _fail(self, error: OSError) -> None:
        self._broken = True
        discard(self._stream)
        self._on_failure(error)


def harmless(text: str) -> str:
    """Return text with control characters escaped, except colours: it cannot steer a terminal."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def accept_any_text() -> None:
    """Make our streams escape characters that their encoding lacks instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _same_file(stream: TextIO, other: TextIO) -> bool:
    try:
        return os.path.sameopenfile(stream.fileno(), other.fileno())
    except OSError:
        return False


class PipedInput:
    """Reads a descriptor for a guest: a piece at a time, and only when the guest asks for one."""

    def __init__(self, fd: int = 0) -> None:
        self._fd, self._turn = fd, asyncio.Lock()

    async def read(self, size: int) -> bytes:
        """Return up to `size` bytes as soon as there are some; b"" at the end."""
        async with self._turn:
            await self._wait()
            return os.read(self._fd, min(size, PIECE))

    async def _wait(self) -> None:
        """Wait until a read does not block. A wait can be cancelled, a blocked read cannot."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        try:
            loop.add_reader(self._fd, ready.set)
        except PermissionError:  # epoll does not take files and /dev/null, which never block
            return
        try:
            await ready.wait()
        finally:
            with contextlib.suppress(OSError):
                loop.remove_reader(self._fd)
