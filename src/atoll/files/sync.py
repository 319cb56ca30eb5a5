"""The file operations for blocking code: every method of Files, with the same arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from atoll.guest.workspace import LINES, MAX_MATCHES

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from atoll.files.base import Files
    from atoll.files.types import (
        DownloadResult,
        EditResult,
        FileData,
        FileInfo,
        GrepMatch,
        Listing,
        UploadResult,
        WriteResult,
    )

T = TypeVar("T")


class Runner(Protocol):
    """Runs a coroutine to its end, for a caller that waits."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """What it returns."""
        ...


class SyncFiles:
    """A workspace for blocking code."""

    def __init__(self, files: Files, run: Runner) -> None:
        self._files, self._run = files, run

    def ls(self, path: str = ".") -> Listing[FileInfo]:
        """What is in a folder; nothing if there is no such folder."""
        return self._run(self._files.ls(path))

    def read(self, path: str, offset: int = 0, limit: int = LINES) -> str:
        """Lines of a text with their numbers, as for a model; what is wrong is said in the text."""
        return self._run(self._files.read(path, offset, limit))

    def read_raw(self, path: str) -> FileData:
        """A text's lines and times; FileNotFoundError, PermissionError, ... if there is none."""
        return self._run(self._files.read_raw(path))

    def write(self, path: str, content: str) -> WriteResult:
        """Make a text, and the folders on the way; one that is there already is not touched."""
        return self._run(self._files.write(path, content))

    def edit(
        self, path: str, old_string: str, new_string: str, *, replace_all: bool = False
    ) -> EditResult:
        """Replace text exactly; it must be there once, or `replace_all` be asked for."""
        return self._run(self._files.edit(path, old_string, new_string, replace_all=replace_all))

    def grep(
        self,
        pattern: str,
        path: str = ".",
        glob: str | None = None,
        *,
        regex: bool = False,
        ignore_case: bool = False,
        max_results: int = MAX_MATCHES,
    ) -> Listing[GrepMatch]:
        """Lines with `pattern` in them, literally unless `regex`, in files that fit `glob`."""
        options = {"regex": regex, "ignore_case": ignore_case, "max_results": max_results}
        return self._run(self._files.grep(pattern, path, glob, **options))  # type: ignore[arg-type]

    def glob(self, pattern: str, path: str = ".") -> Listing[FileInfo]:
        """Files and folders below `path` that fit `pattern`, in order, dot files too."""
        return self._run(self._files.glob(pattern, path))

    def upload(self, files: Iterable[tuple[str, bytes]]) -> list[UploadResult]:
        """Put files there, whatever was there before: one result each, in order."""
        return self._run(self._files.upload(files))

    def download(self, paths: Iterable[str]) -> list[DownloadResult]:
        """Get files from there: one result each, in order."""
        return self._run(self._files.download(paths))


def run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits for anything, without an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a blocking operation has waited for an event loop")
