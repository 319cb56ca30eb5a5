"""What guest code prints, as it comes: kept up to a limit, handed on line by line."""

from __future__ import annotations

import codecs
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.config import LineCallback, SandboxConfig

HEAD_SHARE = 0.75


class OutputCapture:
    """One stream of one execution: the first and the last of it, and how much there was."""

    def __init__(
        self,
        *,
        max_bytes: int,
        max_chars: int,
        on_line: Callable[[str], None] | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> None:
        self._max_bytes, self._max_chars = max_bytes, max_chars
        self._head = self._tail = bytearray()
        self._total = 0
        self._lines = LineSplitter(on_line, max_chars) if on_line else None
        self._pieces = TextStream(on_text, max_chars) if on_text else None
        self.blank = not (on_line or on_text)
        """Whether it has taken nothing, and has no function of the caller's to call at its end."""

    def feed(self, data: bytes) -> None:
        """Take bytes of the stream."""
        self.blank = False
        if not self._total:
            self._head, self._tail = bytearray(), bytearray()
        self._total += len(data)
        if self._lines:
            self._lines.feed(data)
        if self._pieces:
            self._pieces.feed(data)
        head_room = int(self._max_bytes * HEAD_SHARE)
        room = head_room - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        tail_room = self._max_bytes - head_room
        if len(self._tail) > 2 * tail_room:
            del self._tail[:-tail_room]

    def finish(self) -> tuple[str, bool]:
        """Return the text to show, and whether anything was left out."""
        if self._pieces:
            self._pieces.finish()
        if self._lines:
            self._lines.finish()
        if not self._total:
            return "", False
        if self._total <= self._max_bytes:
            text = _decode(self._head + self._tail)
            if len(text) <= self._max_chars:
                return text, False
        return self._cut(), True

    def _cut(self) -> str:
        longest = self._notice(self._total)
        room = max(0, min(self._max_chars, self._max_bytes) - len(longest))
        head_size = int(room * HEAD_SHARE)
        whole = self._head + self._tail
        head = _decode(whole[: 4 * head_size])[:head_size]
        head = _within(head, head_size if self._max_bytes <= self._max_chars else None)
        tail_size = room - head_size
        tail = _decode(whole[-4 * tail_size :])[-tail_size:] if tail_size else ""
        tail = _within(tail, tail_size if self._max_bytes <= self._max_chars else None)
        left_out = self._total - len(head.encode()) - len(tail.encode())
        return head + self._notice(left_out) + tail

    def _notice(self, left_out: int) -> str:
        return f"\n[... output cut: {left_out:,} of {self._total:,} bytes left out ...]\n"


def make_captures(config: SandboxConfig, *lines_of: str) -> tuple[OutputCapture, OutputCapture]:
    """Return captures of stdout and stderr that call the caller's functions.

    Lines are told of the streams that are named; pieces of both, if any is.
    """

    def capture(stream: str, on_line: LineCallback | None, most: int) -> OutputCapture:
        heard = config.on_output if lines_of else None
        return OutputCapture(
            max_bytes=most,
            max_chars=config.max_output_length,
            on_line=on_line if stream in lines_of else None,
            on_text=heard and functools.partial(heard, stream),
        )

    return (
        capture("stdout", config.on_stdout, config.policy.stdout_max_bytes),
        capture("stderr", config.on_stderr, config.policy.stderr_max_bytes),
    )


class LineSplitter:
    """Calls back with each line as it is complete, up to a number of characters."""

    def __init__(self, on_line: Callable[[str], None], max_chars: int) -> None:
        self._on_line, self._left = on_line, max_chars
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial: list[str] = []
        self._partial_size = 0
        self._failure: Exception | None = None

    def feed(self, data: bytes) -> None:
        """Take more of the stream."""
        if self._left <= 0:
            return
        *lines, rest = self._decoder.decode(data).split("\n")
        for line in lines:
            self._partial.append(line)
            self._flush()
        self._keep(rest)

    def finish(self) -> None:
        """Hand over a last line that had no end; raise what a callback raised."""
        if any(self._partial):
            self._flush()
        if self._failure:
            raise self._failure

    def _keep(self, text: str) -> None:
        if text and self._partial_size < self._left:
            self._partial.append(text)
            self._partial_size += len(text)

    def _flush(self) -> None:
        line = "".join(self._partial)
        self._partial, self._partial_size = [], 0
        if self._left <= 0:
            return
        self._call(line[: self._left])
        self._left -= len(line) + 1
        if self._left <= 0:
            self._call("[output limit reached: later lines are not streamed]")

    def _call(self, line: str) -> None:
        if self._failure is None:
            try:
                self._on_line(line)
            except Exception as exc:  # noqa: BLE001 - a caller's callback; raised at the end
                self._failure = exc


class TextStream:
    """Calls back with text as it comes, up to a number of characters."""

    def __init__(self, on_text: Callable[[str], None], max_chars: int) -> None:
        self._on_text, self._left = on_text, max_chars
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._failure: Exception | None = None

    def feed(self, data: bytes, *, final: bool = False) -> None:
        """Take more of the stream; an incomplete character is held back until it is whole."""
        text = self._decoder.decode(data, final)[: max(0, self._left)]
        self._left -= len(text)
        if text and self._failure is None:
            try:
                self._on_text(text)
            except Exception as exc:  # noqa: BLE001 - a caller's callback; raised at the end
                self._failure = exc

    def finish(self) -> None:
        """Hand over what was held back; raise what a callback raised."""
        self.feed(b"", final=True)
        if self._failure:
            raise self._failure


def _decode(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "replace")


def _within(text: str, max_bytes: int | None) -> str:
    """`text` cut so that it has at most `max_bytes` of UTF-8."""
    return text if max_bytes is None else text.encode()[:max_bytes].decode("utf-8", "ignore")
