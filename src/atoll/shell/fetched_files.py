"""What the scripts of a foreign shell have reported: files on which a Workspace runs operations.

SECURITY: a foreign sandbox printed it: validate everything.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from atoll.errors import SandboxError
from atoll.guest.shared.local_files import MAX_FOLDERS_DEEP, fill
from atoll.guest.shared.search import shown
from atoll.guest.shared.texts import too_large

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
T = TypeVar("T")
MAX_RECORDS = 1_000_000
"""Most records in an answer: each takes far more memory than its bytes."""
_CODES = {
    "No such file or directory": errno.ENOENT,
    "Directory nonexistent": errno.ENOENT,
    "Permission denied": errno.EACCES,
    "Operation not permitted": errno.EPERM,
    "Read-only file system": errno.EROFS,
    "Is a directory": errno.EISDIR,
    "Not a directory": errno.ENOTDIR,
    "File exists": errno.EEXIST,
    "Directory not empty": errno.ENOTEMPTY,
    "File name too long": errno.ENAMETOOLONG,
    "Filename too long": errno.ENAMETOOLONG,
    "Too many levels of symbolic links": errno.ELOOP,
    "Symbolic link loop": errno.ELOOP,
    "File too large": errno.EFBIG,
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Quota exceeded": errno.EDQUOT,
}


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


def _or_nonsense(parse: Callable[P, T]) -> Callable[P, T]:
    @wraps(parse)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return parse(*args, **kwargs)
        except (ValueError, LookupError, OverflowError) as exc:
            raise SandboxError(f"the sandbox's answer cannot be read: {str(exc)[:200]}") from None

    return guarded


@_or_nonsense
def rows(output: bytes, path: str) -> list[Row]:
    """Return the entries that list.sh found in or below a folder, or the file itself."""
    kind, _, rest = output.partition(b"\n")
    _check_count(rest)
    records = rest.split(b"//\n")[:-1]
    if kind == b"file":
        return [Row(os.path.basename(path), _row(record).info) for record in records[:1]]
    return [row for row in map(_row, records) if row.path]


def _check_count(output: bytes) -> None:
    if output.count(b"\n") > MAX_RECORDS:
        raise ValueError(f"it has more than {MAX_RECORDS:,} parts")


def _row(record: bytes) -> Row:
    mode, size, modified, changed, name = record.split(b" ", 4)
    info = _info(mode, size, modified, changed)
    path = name[2:].decode("utf-8", "surrogateescape")
    too_deep = path.count("/") >= MAX_FOLDERS_DEEP and stat.S_ISDIR(info.st_mode)
    return Row(path, info, too_deep)


def _info(mode: bytes, size: bytes, modified: bytes, changed: bytes) -> os.stat_result:
    return status(int(mode, 16) & 0xFFFF, int(size), float(modified), float(changed))


@_or_nonsense
def fetched(output: bytes, most: int) -> tuple[FetchedFiles, int]:
    """Return the file that fetch.sh read or its error, and the number of lines, if counted."""
    kind, _, rest = output.partition(b"\n")
    place = FetchedFiles(link=kind == b"link")
    if not rest.startswith(b"+"):
        place.fault = fault(rest)
        return place, 0
    head, _, place.data = rest[1:].partition(b"\n")
    size, mode, modified, changed, lines = head.split(b" ")
    place.info = _info(mode, size, modified, changed)
    place.fault = fault_of(place.info, most)
    return place, int(lines)


def fault(output: bytes) -> OSError | None:
    """Return the error that a script reports, by the tool's message; None if it succeeded."""
    if output.startswith(b"+"):
        return None
    reason = output[1:].decode("utf-8", "replace").strip().rpartition(": ")[2][:200]
    return OSError(_CODES.get(reason, errno.EIO), reason or "the shell did not say why")


@_or_nonsense
def looked_up(output: bytes) -> FetchedFiles:
    """Return the status that change.sh reports for a path, or the error."""
    if refusal := fault(output):
        return FetchedFiles(refusal=refusal)
    return FetchedFiles(info=_info(*output[1:].split()))


@_or_nonsense
def candidates(output: bytes) -> tuple[list[str], bool]:
    """Return the files where candidates.sh found the pattern, and whether folders were skipped."""
    _check_count(output)
    head, _, rest = output[1:].partition(b"\n")
    plain, _, odd = (b"\n" + rest).partition(b"\n\n")
    names = [*plain.split(b"\n")[1:], *odd.split(b"//\n")[:-1]]
    paths = [name[2:].decode("utf-8", "surrogateescape") for name in names]
    return sorted(paths, key=lambda path: path.split("/")), int(head) > 0


@_or_nonsense
def lines(output: bytes, count: int) -> list[list[tuple[int, str]]]:
    """Return number and text of the lines that lines.sh matched, file by file."""
    _check_count(output)
    files: list[list[tuple[int, str]]] = []
    for line in output.split(b"\n")[:-1]:
        if line == b"=":
            files.append([])
        else:
            number, _, text = line.partition(b":")
            files[-1].append((int(number), shown(text)))
    if len(files) != count:
        raise ValueError(f"{len(files)} files instead of {count}")
    return files
