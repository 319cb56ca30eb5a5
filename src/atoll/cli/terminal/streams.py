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

STREAM_LIMIT = 1 << 26
"""Characters of one stream of a cell that are passed on."""
PIECE = 1 << 16
_BEGUN = re.compile(r"\x1b(\[[\d;]{0,32})?\Z")
_CONTROLS = re.compile(r"\x1b(?!\[[\d;]*m)|[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f-\x9f]")


class GuestOutput:
    """The two streams of a sandbox; `on_failure` is called when one cannot be written."""

    def __init__(self) -> None:
        self.on_failure: Callable[[], None] = lambda: None
        self._writers = {
            "stdout": TextWriter(sys.stdout, self._fail),
            "stderr": TextWriter(sys.stderr, self._fail),
        }
        self._mixed = _same_file(sys.stdout, sys.stderr)
        self.failure: OSError | None = None
        self.muted = False
        """Set while a cell runs whose output is not to be shown."""

    def write(self, stream: str, text: str) -> None:
        """Pass on text of the guest's, as it came; lines of both streams do not run together."""
        if self.muted or self.failure is not None:  # a failure cancels the cell
            return
        target = self._writers[stream]
        if self._mixed:
            for other in self._writers.values():
                if other is not target:
                    other.end_line()
        target.write(text)

    def line_was_typed(self) -> None:
        """Take note that the terminal shows the end of a line that its user typed."""
        for writer in self._writers.values():
            writer.has_open_line = False

    def finish(self, *, end_lines: bool = False) -> bool:
        """End the cell, and with `end_lines` its last lines; return whether all was shown."""
        whole = [writer.finish(newline=end_lines) for writer in self._writers.values()]
        return all(whole)

    def _fail(self, error: OSError) -> None:
        self.failure = error
        self.on_failure()


class TextWriter:
    """Writes text as it comes, up to a limit; a terminal gets no control characters but colours."""

    def __init__(self, stream: TextIO, on_failure: Callable[[OSError], None]) -> None:
        self._stream, self._on_failure = stream, on_failure
        self._terminal = stream.isatty()
        self._left, self._cut = STREAM_LIMIT, False
        self._begun = ""
        """The beginning of what may become a colour."""
        self.has_open_line = self._broken = False
        self._flush: asyncio.Handle | None = None

    def write(self, text: str) -> None:
        """Write text, and flush once for all that arrives together."""
        if len(text) > self._left:
            self._cut, text = True, text[: self._left]
        self._left -= len(text)
        if not text:
            return
        if self._terminal:
            text = self._begun + text
            begun = _BEGUN.search(text)
            self._begun = begun[0] if begun else ""
            text = harmless(text.removesuffix(self._begun))
        self._put(text)
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_soon(self._end_burst)

    def end_line(self) -> None:
        """Write a newline if the last line has none."""
        if self.has_open_line:
            self._put("\n")

    def finish(self, *, newline: bool) -> bool:
        """End the cell, and its last line with `newline`; return whether all was written."""
        if self._flush is not None:
            self._flush.cancel()
        self._put(harmless(self._begun))
        if newline:
            self.end_line()
        self._end_burst()
        whole = not self._cut
        self._left, self._cut, self._begun = STREAM_LIMIT, False, ""
        self.has_open_line = False
        return whole

    def _put(self, text: str) -> None:
        if text and not self._broken:
            self.has_open_line = not text.endswith("\n")
            try:
                self._stream.write(text)
            except OSError as exc:
                self._fail(exc)

    def _end_burst(self) -> None:
        self._flush = None
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
