"""A place of files that were asked for beforehand: the operations run on what was told."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.guest.local_files import fill

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class Row:
    """Something that a listing tells of."""

    path: str
    info: os.stat_result
    too_deep: bool = False

    def open(self) -> int:
        """Nobody has asked for its bytes."""
        raise FileNotFoundError(errno.ENOENT, "it was listed, not fetched")


@dataclass(slots=True)
class RecalledPlace:
    """What a shell has told of one path; what is stored is kept for it."""

    rows: list[Row] = field(default_factory=list)
    link: bool = False
    info: os.stat_result | None = None
    data: bytes = b""
    fault: Exception | None = None
    """Why it cannot be read."""
    refusal: Exception | None = None
    """Why it cannot be stored."""
    stored: bytes | None = None

    def open(self, path: str) -> int:
        """A descriptor of what was fetched."""
        del path
        if self.fault:
            raise self.fault
        fd = os.memfd_create("atoll-recalled")
        copy = os.dup(fd)
        fill(copy, self.data)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def is_link(self, path: str) -> bool:
        """Whether it was a link."""
        del path
        return self.link

    def entries(self, path: str) -> list[tuple[str, os.stat_result]]:
        """What was in the folder."""
        del path
        return [(row.path, row.info) for row in self.rows]

    def walk(self, path: str) -> Iterator[Row]:
        """What was below it, as a walk goes."""
        del path
        yield from sorted(self.rows, key=lambda row: row.path.split("/"))

    def store(self, path: str, data: bytes, *, fresh: bool) -> None:
        """Keep it, for whoever carries it there."""
        del path, fresh
        if self.refusal:
            raise self.refusal
        self.stored = data

    def stat(self, path: str) -> os.stat_result:
        """Return what was told of it."""
        self._obey(path)
        assert self.info is not None
        return self.info

    def delete(self, path: str, *, recursive: bool) -> None:
        """Raise what went wrong, if something did."""
        self._obey(path, recursive)

    def move(self, path: str, target: str, *, overwrite: bool) -> None:
        """Raise what went wrong, if something did."""
        self._obey(path, target, overwrite)

    def mkdir(self, path: str) -> None:
        """Raise what went wrong, if something did."""
        self._obey(path)

    def _obey(self, *_asked: object) -> None:
        if self.refusal:
            raise self.refusal


def status(mode: int, size: int, modified: float, changed: float) -> os.stat_result:
    """What stat would say."""
    whole = (mode, 0, 0, 1, 0, 0, size, 0, int(modified), int(changed))
    return os.stat_result((*whole, 0.0, modified, changed))


def fault_of(info: os.stat_result, most: int) -> OSError | None:
    """Why something cannot be read as a file."""
    if stat.S_ISDIR(info.st_mode):
        return IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(info.st_mode):
        return OSError(errno.EINVAL, "it is no file")
    if info.st_size > most:
        return OSError(errno.EFBIG, f"it has {info.st_size:,} bytes")
    return None
