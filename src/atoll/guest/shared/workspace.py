"""File operations of an agent: list, read, write, edit, search, move, delete, in any place.

Arguments and answers are plain values, so that they cross any channel; the host gives them types.
Messages of `read`, `write` and `edit` are for a model to read; `code` is there for programs.
"""

from __future__ import annotations

import errno
import os
import stat

from . import globs, search
from .texts import MAX_FILE_BYTES, check_lines, count_lines, page_of, read_file, too_large

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, Protocol

    from .messages import Json

    class Found(Protocol):
        """Something that a walk came by."""

        path: str
        """Relative to where the walk began."""
        info: os.stat_result
        too_deep: bool
        """Whether it is a folder that the walk does not enter."""

        def open(self) -> int:
            """Open it for reading."""
            ...

    class Place(Protocol):
        """Where files are. Every method raises OSError; no link leads out of it."""

        def open(self, path: str) -> int:
            """Open an existing file for reading."""
            ...

        def is_link(self, path: str) -> bool:
            """Return whether the path is a symbolic link."""
            ...

        def entries(self, path: str) -> list[tuple[str, os.stat_result]]:
            """List a folder; links are not followed."""
            ...

        def walk(self, path: str) -> Iterator[Found]:
            """Yield files and folders below a folder in order; links are not followed."""
            ...

        def store(self, path: str, data: bytes, *, fresh: bool) -> None:
            """Make a file, and folders on the way; a `fresh` one must not be there yet."""
            ...

        def stat(self, path: str) -> os.stat_result:
            """Describe a file, folder or link; a link is not followed."""
            ...

        def delete(self, path: str, *, recursive: bool) -> None:
            """Delete a file or link, or a folder with all it holds if `recursive`."""
            ...

        def move(self, path: str, target: str, *, overwrite: bool) -> None:
            """Rename a file, folder or link, and make the target's parent folders."""
            ...

        def mkdir(self, path: str) -> None:
            """Make a folder and its parents; it may exist."""
            ...


MAX_FOUND = 10_000
MAX_MATCHES = 1_000
LINES = 2_000
EMPTY = "System reminder: File exists but has empty contents"
NOT_FOUND = "file_not_found"
DENIED = "permission_denied"
IS_FOLDER = "is_directory"
INVALID = "invalid_path"
TOO_LARGE, NO_SPACE, FAILED, EXISTS = "too_large", "no_space", "io_error", "file_exists"
_CODES = {
    errno.ENOENT: NOT_FOUND,
    errno.EACCES: DENIED,
    errno.EPERM: DENIED,
    errno.EROFS: DENIED,
    errno.EISDIR: IS_FOLDER,
    errno.ENOTDIR: INVALID,
    errno.EINVAL: INVALID,
    errno.ELOOP: INVALID,
    errno.EXDEV: INVALID,
    errno.ENAMETOOLONG: INVALID,
    errno.EEXIST: EXISTS,
    errno.ENOTEMPTY: EXISTS,
    errno.EFBIG: TOO_LARGE,
    errno.ENOSPC: NO_SPACE,
    errno.EDQUOT: NO_SPACE,
}
_WORDS = {
    NOT_FOUND: "not found",
    DENIED: "permission denied",
    IS_FOLDER: "it is a folder",
    NO_SPACE: "there is no room left",
    EXISTS: "there is a file or folder of that name",
}
_WORDS_BY_ERRNO = {
    errno.ENAMETOOLONG: "its name is too long",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.ELOOP: "its symbolic links lead in a circle, or to a place where none is followed",
    errno.EXDEV: "a symbolic link in the path leads outside the working folder",
}


class Workspace:
    """The operations, by name: `run("ls", {"path": "."})`."""

    def __init__(
        self,
        place: Place,
        searcher: Callable[..., Json] = search.search,
        most: int = MAX_FILE_BYTES,
    ) -> None:
        """`searcher` carries out `grep`; `most` is what a file may have that is read as a whole."""
        self._place, self._search, self._most = place, searcher, most
        self._operations: dict[str, Callable[..., Json]] = {
            "ls": self.ls,
            "read": self.read,
            "read_raw": self.read_raw,
            "write": self.write,
            "edit": self.edit,
            "grep": self.grep,
            "glob": self.glob,
            "upload": self.upload,
            "download": self.download,
            "stat": self.stat,
            "delete": self.delete,
            "move": self.move,
            "mkdir": self.mkdir,
        }

    def run(self, operation: str, params: Json) -> Json:
        """Carry one out."""
        return self._operations[operation](**params)

    def ls(self, path: str) -> Json:
        """List a folder; an empty list if it does not exist."""
        try:
            entries = self._place.entries(path)
        except (OSError, ValueError):
            return {"entries": [], "truncated": False}
        rows = [_entry(name, info) for name, info in sorted(entries)[:MAX_FOUND]]
        return {"entries": rows, "truncated": len(entries) > MAX_FOUND}

    def read(self, path: str, offset: int, limit: int) -> Json:
        """Some lines of a text, numbered; or why not."""
        try:
            data, _ = self._load(path)
            total = count_lines(data)
            check_lines(min(max(total - offset, 0), limit))
        except (OSError, ValueError) as exc:
            return {"text": _failed(path, "read", exc), "code": code_of(exc)}
        if not data:
            return {"text": EMPTY}
        return page(path, page_of(data, offset, limit), offset, total)

    def read_raw(self, path: str) -> Json:
        """Return a text's lines and its times."""
        try:
            data, info = self._load(path)
            check_lines(count_lines(data))
        except (OSError, ValueError) as exc:
            return {"error": code_of(exc), "reason": words(exc)}
        lines = data.decode("utf-8", "replace").split("\n")
        return {"content": lines, "created": info.st_ctime, "modified": info.st_mtime}

    def write(self, path: str, content: str) -> Json:
        """Write a new text file; an existing file is not changed."""
        try:
            self._place.store(path, content.encode("utf-8", "surrogateescape"), fresh=True)
        except (OSError, ValueError) as exc:
            if getattr(exc, "errno", None) == errno.EEXIST:
                text = "Cannot write to {} because it already exists.".format(path)
                return {"error": text, "code": EXISTS}
            text = "Error: File '{}' cannot be written: {}".format(path, words(exc))
            return {"error": text, "code": code_of(exc)}
        return {"path": path}

    def edit(self, path: str, old: str, new: str, replace_all: bool) -> Json:
        """Put `new` in the place of `old`, which must be there, and once unless `replace_all`."""
        try:
            if self._place.is_link(path):
                text = "Error: '{}' is a link: edit the file that it leads to"
                return {"error": text.format(path)}
            data, count = _edited(self._load(path)[0], old, new, replace_all, self._most)
            self._place.store(path, data, fresh=False)
        except _NotEditedError as exc:
            return {"error": "Error: {}".format(exc)}
        except (OSError, ValueError) as exc:
            return {"error": _failed(path, "edited", exc), "code": code_of(exc)}
        return {"path": path, "occurrences": count}

    def glob(self, pattern: str, path: str) -> Json:
        """Return the files and folders whose paths match."""
        fits = globs.Glob(pattern).matches
        entries: list[list[Any]] = []
        cut = False
        for file in self._walk(path):
            cut |= file.too_deep
            if fits(file.path):
                entries.append(_entry(file.path, file.info))
            if len(entries) > MAX_FOUND:
                cut = True
                break
        return {"entries": sorted(entries[:MAX_FOUND]), "truncated": cut}

    def grep(
        self,
        pattern: str,
        path: str,
        *,
        glob: str | None,
        regex: bool,
        ignore_case: bool,
        max_results: int,
    ) -> Json:
        """Lines of texts that have the pattern in them; files of another kind are left out."""
        options = {"glob": glob, "regex": regex, "ignore_case": ignore_case}
        most = min(max_results, MAX_FOUND)
        return self._search(self._place, pattern, path, max_results=most, **options)

    def upload(self, path: str, data: bytes) -> Json:
        """Write bytes to a file; replace an existing one."""
        try:
            self._place.store(path, data, fresh=False)
        except (OSError, ValueError) as exc:
            return _refused(exc)
        return {}

    def download(self, path: str) -> Json:
        """Return a file's bytes."""
        try:
            return {"data": self._load(path)[0]}
        except (OSError, ValueError) as exc:
            return _refused(exc)

    def stat(self, path: str) -> Json:
        """Describe a file, folder or link."""
        try:
            return {"entry": _entry(path, self._place.stat(path))}
        except (OSError, ValueError) as exc:
            return _refused(exc)

    def delete(self, path: str, recursive: bool) -> Json:
        """Delete a file or link, or a folder with all it holds if `recursive`."""
        return _attempt(lambda: self._place.delete(path, recursive=recursive))

    def move(self, path: str, target: str, overwrite: bool) -> Json:
        """Rename a file, folder or link."""
        return _attempt(lambda: self._place.move(path, target, overwrite=overwrite))

    def mkdir(self, path: str) -> Json:
        """Make a folder and its parents."""
        return _attempt(lambda: self._place.mkdir(path))

    def _walk(self, path: str) -> Iterator[Found]:
        """Yield the files of a folder; none if it does not exist."""
        try:
            yield from self._place.walk(path)
        except (OSError, ValueError):
            return

    def _load(self, path: str) -> tuple[bytes, os.stat_result]:
        fd = self._place.open(path)
        try:
            info = os.fstat(fd)
            return read_file(fd, info, self._most), info
        finally:
            os.close(fd)


def _attempt(work: Callable[[], None]) -> Json:
    try:
        work()
    except (OSError, ValueError) as exc:
        return _refused(exc)
    return {}


def _refused(exc: Exception) -> Json:
    return {"error": code_of(exc), "reason": words(exc)}


def _failed(path: str, done: str, exc: Exception) -> str:
    """Return the error text for a file that could not be read or edited."""
    if code_of(exc) == NOT_FOUND:
        return "Error: File '{}' not found".format(path)
    return "Error: File '{}' cannot be {}: {}".format(path, done, words(exc))


def code_of(exc: Exception) -> str:
    """Return the error code of an exception."""
    if isinstance(exc, OSError):
        return _CODES.get(exc.errno or 0, FAILED)
    return INVALID


def words(exc: Exception) -> str:
    """Return the error text of an exception."""
    if isinstance(exc, UnicodeEncodeError):
        return "it has a character that UTF-8 cannot hold, half of a surrogate pair"
    known = _WORDS_BY_ERRNO.get(getattr(exc, "errno", None) or 0) or _WORDS.get(code_of(exc))
    return known or getattr(exc, "strerror", None) or str(exc)


def page(path: str, lines: list[str], offset: int, total: int) -> Json:
    """Lines of a text with their numbers; or that there are none so far on."""
    if offset >= total:
        text = "Error: Line offset {} is beyond the end of file '{}' ({} lines)"
        return {"text": text.format(offset, path, total)}
    rows = ["{:6d}\t{}".format(offset + at, line) for at, line in enumerate(lines, 1)]
    return {"text": "\n".join(rows)}


def _entry(path: str, info: os.stat_result) -> list[Any]:
    return [path, stat.S_ISDIR(info.st_mode), info.st_size, info.st_mtime]


class _NotEditedError(Exception):
    """The text does not have what should be replaced, or has it too often."""


def _edited(data: bytes, old: str, new: str, replace_all: bool, most: int) -> tuple[bytes, int]:
    """Return the new text, and how often `old` was replaced."""
    if not old:
        raise _NotEditedError("The string to replace is empty")
    before, after = _as_in_file(data, old, new)
    count = data.count(before)
    if not count:
        raise _NotEditedError("String not found in file: '{}'".format(old))
    if count > 1 and not replace_all:
        text = "String '{}' appears multiple times. "
        text += "Use replace_all=True to replace all occurrences."
        raise _NotEditedError(text.format(old))
    size = len(data) + count * (len(after) - len(before))
    if size > most:
        raise OSError(errno.EFBIG, too_large("would have", size, most))
    return data.replace(before, after), count


def _as_in_file(data: bytes, old: str, new: str) -> tuple[bytes, bytes]:
    """Both as bytes; with the file's own line ends, if only with them `old` is in it."""
    before, after = (text.encode("utf-8", "surrogateescape") for text in (old, new))
    if before not in data and b"\n" in before and b"\r\n" in data:
        before, after = (text.replace(b"\n", b"\r\n") for text in (before, after))
    return before, after
