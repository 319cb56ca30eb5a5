"""The stdio framing: a marker line, JSON, a marker line. Pure: bytes in, events out.

A marker counts only as a whole line. JSON has no raw line ends in strings, so no content can end
its frame.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

READY = b">>> READY <<<"
MAX_FRAME_BYTES = 128 << 20
MAX_NOISE_BYTES = 200

Kind = Literal["REQUEST", "RESPONSE"]


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
