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
        StrPath,
        UploadResult,
        WriteResult,
    )

T = TypeVar("T")


class Runner(Protocol):
    """Runs a coroutine and returns its result."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns."""
        ...


class SyncFiles:
    """The files of a sandbox, for blocking code."""

    def __init__(self, files: Files, run: Runner) -> None:
        self._files, self._run = files, run

    def ls(self, path: StrPath = ".") -> Listing[FileInfo]:
        """List a folder; an empty list if there is no such folder."""
        return self._run(self._files.ls(path))

    def read(self, path: StrPath, offset: int = 0, limit: int = LINES) -> str:
        """Return numbered lines of a text file for a model; an error is returned as text."""
        return self._run(self._files.read(path, offset, limit))

    def read_raw(self, path: StrPath) -> FileData:
        """Return the lines and times of a text file; FileNotFoundError if there is none."""
        return self._run(self._files.read_raw(path))

    def write(self, path: StrPath, content: str) -> WriteResult:
        """Create a text file and its parent folders; an existing file is not overwritten."""
        return self._run(self._files.write(path, content))

    def edit(
        self, path: StrPath, old_string: str, new_string: str, *, replace_all: bool = False
    ) -> EditResult:
        """Replace text that occurs exactly once, or every occurrence with `replace_all`."""
        return self._run(self._files.edit(path, old_string, new_string, replace_all=replace_all))

    def grep(
        self,
        pattern: str,
        path: StrPath = ".",
        glob: str | None = None,
        *,
        regex: bool = False,
        ignore_case: bool = False,
        max_results: int = MAX_MATCHES,
    ) -> Listing[GrepMatch]:
        """Find lines with `pattern`, literally unless `regex`, in files that match `glob`."""
        options = {"regex": regex, "ignore_case": ignore_case, "max_results": max_results}
        return self._run(self._files.grep(pattern, path, glob, **options))  # type: ignore[arg-type]

    def glob(self, pattern: str, path: StrPath = ".") -> Listing[FileInfo]:
        """Find files and folders below `path` that match `pattern`, sorted, with dot files."""
        return self._run(self._files.glob(pattern, path))

    def stat(self, path: StrPath) -> FileInfo:
        """Describe a file or folder; FileNotFoundError if there is none. Links are not followed."""
        return self._run(self._files.stat(path))

    def mkdir(self, path: StrPath) -> None:
        """Make a folder and its parents; an existing folder is left as it is."""
        self._run(self._files.mkdir(path))

    def delete(self, path: StrPath, *, recursive: bool = False) -> None:
        """Delete a file or link; a folder, with all it holds, only with `recursive`.

        FileNotFoundError if it does not exist, IsADirectoryError for a folder.
        """
        self._run(self._files.delete(path, recursive=recursive))

    def move(self, source: StrPath, target: StrPath, *, overwrite: bool = False) -> None:
        """Rename a file, folder or link to exactly `target`, and make its parent folders.

        FileExistsError if the target exists; `overwrite` replaces a file or an empty folder.
        """
        self._run(self._files.move(source, target, overwrite=overwrite))

    def upload(
        self, files: Iterable[tuple[StrPath, bytes]], *, absolute: bool = False
    ) -> list[UploadResult]:
        """Write files and overwrite existing ones; return one result each, in order.

        With `absolute`, a path is absolute as guest code sees it, wherever in the sandbox it is;
        what the guest may not write is refused. That needs a backend with a shell.
        """
        return self._run(self._files.upload(files, absolute=absolute))

    def download(self, paths: Iterable[StrPath], *, absolute: bool = False) -> list[DownloadResult]:
        """Read files; return one result each, in order. `absolute`: as for upload."""
        return self._run(self._files.download(paths, absolute=absolute))


def run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, without an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a blocking operation has waited for an event loop")
