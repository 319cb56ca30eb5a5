"""Reads files that may be anything, and may change meanwhile; takes texts apart."""

from __future__ import annotations

import errno
import io
import itertools
import os
import stat

MAX_FILE_BYTES = 512 << 20
PIECE = 1 << 20
LONGEST_LINE = 16 << 20
"""Bytes of a line that are searched."""


def read_file(fd: int, info: os.stat_result, most: int = MAX_FILE_BYTES) -> bytes:
    """A whole file: no more than it was when we looked, and nothing that is none."""
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "it is no file")
    if info.st_size > most:
        raise OSError(errno.EFBIG, "it has {:,} bytes".format(info.st_size))
    pieces, left = [], info.st_size
    while left > 0:
        piece = os.read(fd, min(left, PIECE))
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def lines_of(data: bytes, offset: int = 0, limit: int = MAX_FILE_BYTES) -> list[str]:
    """Some lines of a text, without their ends; only these are made, however many there are."""
    first = min(offset, len(data))
    wanted = itertools.islice(io.BytesIO(data), first, first + min(limit, len(data)))
    return [_without_end(line.decode("utf-8", "replace")) for line in wanted]


def count_lines(data: bytes) -> int:
    """How many lines a text has; a last one that is not ended counts."""
    return data.count(b"\n") + (data[-1:] not in (b"", b"\n"))


def _without_end(line: str) -> str:
    line = line[: -line.endswith("\n") or None]
    return line[: -line.endswith("\r") or None]
