"""Reads files that may be anything, and may change meanwhile; takes texts apart."""

from __future__ import annotations

import errno
import os
import stat

MAX_FILE_BYTES = 512 << 20
PIECE = 1 << 20
PASSED = 1 << 16
MAX_LINES = 1_000_000
"""Each takes far more memory than it has bytes."""
LONGEST_LINE = 16 << 20
"""Bytes of a line that are searched."""


def read_file(fd: int, info: os.stat_result, most: int = MAX_FILE_BYTES) -> bytes:
    """Read a regular file, at most the size that it had when it was looked at."""
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if info.st_size > most:
        raise OSError(errno.EFBIG, too_large("has", info.st_size, most))
    pieces, left = [], info.st_size
    while left > 0:
        piece = os.read(fd, min(left, PIECE))
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def too_large(verb: str, size: int, most: int) -> str:
    """Return the fault of a file of `size` bytes where `most` are accepted."""
    return "it {} {:,} bytes; the limit is {:,}".format(verb, size, most)


def page_of(data: bytes, offset: int, limit: int) -> list[str]:
    """Some of its lines; the others are passed over, not taken apart."""
    start = _line_start(data, 0, offset)
    return lines_of(data[start : _line_start(data, start, limit)])


def count_lines(data: bytes) -> int:
    """Count lines; a last line without a newline counts."""
    return data.count(b"\n") + (not data.endswith(b"\n"))


def _line_start(data: bytes, at: int, lines: int) -> int:
    """Return the position after so many lines."""
    while lines > 0 and at < len(data):
        ends = data.count(b"\n", at, at + PASSED)
        if ends >= lines:
            for _ in range(lines):
                at = data.find(b"\n", at) + 1
            return at
        at, lines = at + PASSED, lines - ends
    return min(at, len(data))


def check_lines(count: int) -> None:
    """OSError if a list of so many is more than a host should be made to hold."""
    if count > MAX_LINES:
        text = "{:,} lines were asked for; at most {:,} are returned at once"
        raise OSError(errno.EFBIG, text.format(count, MAX_LINES))


def lines_of(data: bytes) -> list[str]:
    """Return the lines of a text without their newlines; a last line needs none."""
    lines = data.decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()
    return [line[: -line.endswith("\r") or None] for line in lines]
