"""Parses the output of scripts/. SECURITY: a foreign sandbox printed it: validate everything."""

from __future__ import annotations

import errno
import os
import stat
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from atoll.errors import SandboxError
from atoll.guest.shared.local_files import MOST_FOLDERS_DEEP
from atoll.guest.shared.search import shown
from atoll.shell.fetched_files import FetchedFiles, Row, fault_of, status

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")
MOST_RECORDS = 1_000_000
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
        return [Row(os.path.basename(path), _row(one).info) for one in records[:1]]
    return [row for row in map(_row, records) if row.path]


def _check_count(output: bytes) -> None:
    if output.count(b"\n") > MOST_RECORDS:
        raise ValueError(f"it has more than {MOST_RECORDS:,} parts")


def _row(record: bytes) -> Row:
    mode, size, modified, changed, name = record.split(b" ", 4)
    info = _info(mode, size, modified, changed)
    path = name[2:].decode("utf-8", "surrogateescape")
    too_deep = path.count("/") >= MOST_FOLDERS_DEEP and stat.S_ISDIR(info.st_mode)
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
    found: list[list[tuple[int, str]]] = []
    for line in output.split(b"\n")[:-1]:
        if line == b"=":
            found.append([])
        else:
            number, _, text = line.partition(b":")
            found[-1].append((int(number), shown(text)))
    if len(found) != count:
        raise ValueError(f"{len(found)} files instead of {count}")
    return found
