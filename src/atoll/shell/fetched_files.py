"""Files that a shell has fetched before: a Workspace runs its operations on them."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.guest.shared.local_files import fill
from atoll.guest.shared.texts import too_large

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class Row:
    """An entry of a listing."""

    path: str
    info: os.stat_result
    too_deep: bool = False

    def open(self) -> int:
        """Raise FileNotFoundError: a listing has no content."""
        raise FileNotFoundError(errno.ENOENT, "it was listed, not fetched")


@dataclass(slots=True)
class FetchedFiles:
    """What a shell reported about one path, and the bytes to store there."""

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
        """Return a descriptor of the fetched bytes."""
        del path
        if self.fault:
            raise self.fault
        fd = os.memfd_create("atoll-fetched")
        copy = os.dup(fd)
        fill(copy, self.data)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def is_link(self, path: str) -> bool:
        """Return whether it was a link."""
        del path
        return self.link

    def entries(self, path: str) -> list[tuple[str, os.stat_result]]:
        """Return the entries of the folder."""
        del path
        return [(row.path, row.info) for row in self.rows]

    def walk(self, path: str) -> Iterator[Row]:
        """Return the entries below the folder, in the order of a walk."""
        del path
        yield from sorted(self.rows, key=lambda row: row.path.split("/"))

    def store(self, path: str, data: bytes, *, fresh: bool) -> None:
        """Keep the bytes; the caller writes them through the shell."""
        del path, fresh
        if self.refusal:
            raise self.refusal
        self.stored = data

    def stat(self, path: str) -> os.stat_result:
        """Return the reported status."""
        self._raise_refusal(path)
        assert self.info is not None
        return self.info

    def delete(self, path: str, *, recursive: bool) -> None:
        """Raise the error that the shell reported, if any."""
        self._raise_refusal(path, recursive)

    def move(self, path: str, target: str, *, overwrite: bool) -> None:
        """Raise the error that the shell reported, if any."""
        self._raise_refusal(path, target, overwrite)

    def mkdir(self, path: str) -> None:
        """Raise the error that the shell reported, if any."""
        self._raise_refusal(path)

    def _raise_refusal(self, *_asked: object) -> None:
        if self.refusal:
            raise self.refusal


def status(mode: int, size: int, modified: float, changed: float) -> os.stat_result:
    """Return an os.stat_result of these values."""
    whole = (mode, 0, 0, 1, 0, 0, size, 0, int(modified), int(changed))
    return os.stat_result((*whole, 0.0, modified, changed))


def fault_of(info: os.stat_result, most: int) -> OSError | None:
    """Return the error of reading an entry as a file; None if it can be read."""
    if stat.S_ISDIR(info.st_mode):
        return IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(info.st_mode):
        return OSError(errno.EINVAL, "it is not a regular file")
    if info.st_size > most:
        return OSError(errno.EFBIG, too_large("has", info.st_size, most))
    return None
