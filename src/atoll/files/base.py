"""The file operations, typed, async and blocking; a subclass knows where the files are."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from atoll.errors import ConfigError, UnsupportedError
from atoll.files.absolute_paths import AbsolutePaths
from atoll.files.types import (
    DownloadResult,
    EditResult,
    FileData,
    FileError,
    FileInfo,
    GrepMatch,
    Listing,
    UploadResult,
    WriteResult,
)
from atoll.guest.shared.workspace import LINES, MAX_MATCHES
from atoll.text.amounts import iso_time
from atoll.text.name_hints import FilesHints

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from atoll.files.absolute_paths import Shell
    from atoll.files.types import StrPath

CHANGING = frozenset({"write", "edit", "upload", "send", "delete", "move", "mkdir"})
"""Operations after which the files may be others."""
_KINDS: dict[FileError, type[OSError]] = {
    FileError.FILE_NOT_FOUND: FileNotFoundError,
    FileError.PERMISSION_DENIED: PermissionError,
    FileError.IS_DIRECTORY: IsADirectoryError,
    FileError.FILE_EXISTS: FileExistsError,
}
P = ParamSpec("P")
T = TypeVar("T")


class Files(FilesHints, ABC):
    """The files of a sandbox. Paths are relative to the working folder; `/x` is `x` there."""

    backend = "custom"
    _absolute: AbsolutePaths | None = None

    @abstractmethod
    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        """Run an operation of guest/shared/workspace; ValueError if its arguments are not valid."""

    async def ls(self, path: StrPath = ".") -> Listing[FileInfo]:
        """List a folder; an empty list if the folder does not exist."""
        answer = await self._run("ls", path=path)
        return Listing(infos(answer["entries"]), truncated=answer["truncated"])

    async def read(self, path: StrPath, offset: int = 0, limit: int = LINES) -> str:
        """Return numbered lines of a text file for a model; an error is returned as text."""
        _check_count("offset", offset)
        _check_count("limit", limit)
        return str((await self._run("read", path=path, offset=offset, limit=limit))["text"])

    async def read_raw(self, path: StrPath) -> FileData:
        """Return the lines and times of a text file; FileNotFoundError if it does not exist."""
        answer = await self._run("read_raw", path=path)
        if "error" in answer:
            raise _error(FileError(answer["error"]), path, "read", answer["reason"])
        created, modified = (iso_time(answer[name]) for name in ("created", "modified"))
        return FileData(content=answer["content"], created_at=created, modified_at=modified)

    async def write(self, path: StrPath, content: str) -> WriteResult:
        """Create a text file and its parent folders; an existing file is not overwritten."""
        _check_text("content", content, ": to write bytes, use upload([(path, data)])")
        answer = await self._run("write", path=path, content=content)
        return WriteResult(path=answer.get("path"), error=answer.get("error"))

    async def edit(
        self,
        path: StrPath,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - callers pass it by position
    ) -> EditResult:
        """Replace text that occurs exactly once, or every occurrence with `replace_all`."""
        _check_text("old_string", old_string)
        _check_text("new_string", new_string)
        params = {"old": old_string, "new": new_string, "replace_all": bool(replace_all)}
        answer = await self._run("edit", path=path, **params)
        shown = {name: answer[name] for name in ("path", "occurrences", "error") if name in answer}
        return EditResult(**shown)

    async def grep(
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
        _check_text("pattern", pattern)
        _check_count("max_results", max_results)
        if glob is not None:
            _check_text("glob", glob)
        params = {"glob": glob, "regex": bool(regex), "ignore_case": bool(ignore_case)}
        answer = await self._run(
            "grep", pattern=pattern, path=path, max_results=max_results, **params
        )
        matches = [
            GrepMatch(path=where, line=line, text=text) for where, line, text in answer["matches"]
        ]
        return Listing(matches, truncated=answer["truncated"])

    async def glob(self, pattern: str, path: StrPath = ".") -> Listing[FileInfo]:
        """Find files and folders below `path` that match `pattern`, sorted, with dot files."""
        _check_text("pattern", pattern)
        answer = await self._run("glob", pattern=pattern, path=path)
        return Listing(infos(answer["entries"]), truncated=answer["truncated"])

    async def ls_info(self, path: StrPath = ".") -> Listing[FileInfo]:
        """List a folder: another name of `ls`."""
        return await self.ls(path)

    async def grep_raw(
        self, pattern: str, path: StrPath = ".", glob: str | None = None
    ) -> Listing[GrepMatch]:
        """Find lines with a literal text: another name of `grep`, without its options."""
        return await self.grep(pattern, path, glob)

    async def glob_info(self, pattern: str, path: StrPath = ".") -> Listing[FileInfo]:
        """Find files and folders that match `pattern`: another name of `glob`."""
        return await self.glob(pattern, path)

    async def stat(self, path: StrPath) -> FileInfo:
        """Describe a file or folder; FileNotFoundError if it is missing. Links are not followed."""
        answer = await self._checked("stat", "looked up", path=path)
        return infos([answer["entry"]])[0]

    async def mkdir(self, path: StrPath) -> None:
        """Make a folder and its parents; an existing folder is left as it is."""
        await self._checked("mkdir", "made", path=path)

    async def delete(self, path: StrPath, *, recursive: bool = False) -> None:
        """Delete a file or link; a folder, with all it holds, only with `recursive`.

        FileNotFoundError if it does not exist, IsADirectoryError for a folder.
        """
        await self._checked("delete", "deleted", path=path, recursive=bool(recursive))

    async def move(self, source: StrPath, target: StrPath, *, overwrite: bool = False) -> None:
        """Rename a file, folder or link to exactly `target`, and make its parent folders.

        FileExistsError if the target exists; `overwrite` replaces a file or an empty folder.
        """
        target = _checked_path("target", target)
        params = {"target": target, "overwrite": bool(overwrite)}
        await self._checked("move", f"moved to '{target}'", path=source, **params)

    async def upload(
        self,
        files: Mapping[Any, bytes] | Iterable[tuple[StrPath, bytes]],
        *,
        absolute: bool = False,
    ) -> list[UploadResult]:
        """Write files and overwrite existing ones; return one result each, in order.

        With `absolute`, a path is absolute as guest code sees it, wherever in the sandbox it is;
        what the guest may not write is refused. That needs a backend with a shell.
        """
        upload = self._by_absolute_path().upload if absolute else self._upload
        pairs = files.items() if isinstance(files, Mapping) else files
        return [await upload(*_checked_pair(pair)) for pair in pairs]

    async def download(
        self, paths: Iterable[StrPath], *, absolute: bool = False
    ) -> list[DownloadResult]:
        """Read files; return one result each, in order. `absolute`: as for upload."""
        if isinstance(paths, str | bytes | os.PathLike):
            raise ConfigError(f"download takes a list of paths: [{paths!r}]")
        download = self._by_absolute_path().download if absolute else self._download
        return [await download(_checked_path("path", path)) for path in paths]

    def reach_by(self, shell: Shell) -> Self:
        """Set the shell by which files at absolute paths are copied."""
        self._absolute = AbsolutePaths(self, shell)
        return self

    def _by_absolute_path(self) -> AbsolutePaths:
        if self._absolute is None:
            raise UnsupportedError(self.backend, "reach files outside of the working folder")
        return self._absolute

    async def _upload(self, path: str, data: bytes) -> UploadResult:
        answer = await self._run("upload", path=path, data=data)
        return UploadResult(path=path, error=_code(answer), reason=answer.get("reason"))

    async def _download(self, path: str) -> DownloadResult:
        answer = await self._run("download", path=path)
        return DownloadResult(
            path=path, content=answer.get("data"), error=_code(answer), reason=answer.get("reason")
        )

    async def _checked(
        self, operation: str, done: str, *, path: StrPath, **params: Any
    ) -> dict[str, Any]:
        """Run an operation, and raise the OSError that it answers with."""
        answer = await self._run(operation, path=path, **params)
        if "error" in answer:
            raise _error(FileError(answer["error"]), path, done, answer["reason"])
        return answer

    async def _run(self, operation: str, *, path: StrPath, **params: Any) -> dict[str, Any]:
        params["path"] = _checked_path("path", path)
        try:
            return await self._ask(operation, params)
        except ValueError as exc:
            raise ConfigError(str(exc)) from None


async def request(files: Files, operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain answer to an operation, for a server that passes requests on."""
    return await files._run(operation, **params)  # noqa: SLF001 - the class above


class NoFiles(Files):
    """The files of a backend without WORKSPACE: every operation is an UnsupportedError."""

    def __init__(self, backend: str, check: Callable[[], None]) -> None:
        self.backend, self._check = backend, check

    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        self._check()
        raise UnsupportedError(self.backend, f"{operation} files")


def infos(rows: Iterable[Any]) -> list[FileInfo]:
    """Return the rows of a plain answer as objects."""
    return [
        FileInfo(path=path, is_dir=is_dir, size=size, modified_at=iso_time(modified))
        for path, is_dir, size, modified in rows
    ]


def _code(answer: dict[str, Any]) -> FileError | None:
    return FileError(answer["error"]) if "error" in answer else None


def _error(code: FileError, path: StrPath, done: str, reason: str) -> OSError:
    """Return the exception for a file that could not be read, deleted, moved, ..."""
    if code is FileError.FILE_NOT_FOUND:
        return FileNotFoundError(f"File '{path}' not found")
    if code is FileError.IS_DIRECTORY and done == "deleted":
        reason = f"{reason}: pass recursive=True to delete all it holds"
    elif code is FileError.FILE_EXISTS and done.startswith("moved"):
        reason = f"{reason}: pass overwrite=True to replace a file or an empty folder"
    return _KINDS.get(code, OSError)(f"File '{path}' cannot be {done}: {reason}")


def _checked_pair(pair: object) -> tuple[str, bytes]:
    """Return a checked pair of path and bytes; bytes(5) would be five zeros."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ConfigError(f"upload takes a list of pairs (path, bytes), not of {pair!r:.100}")
    path, data = _checked_path("path", pair[0]), pair[1]
    if not isinstance(data, bytes | bytearray | memoryview):
        text = f"what is uploaded to {path!r} must be bytes, not {type(data).__name__}"
        raise ConfigError(f"{text}: pass the read_bytes() of a path, encode() a text")
    return path, bytes(data)


def _checked_path(name: str, path: object) -> str:
    """Return a path as text; ConfigError if it is neither a str nor a path of str."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise ConfigError(f"{name} must be a str or a pathlib path, not {type(path).__name__}")
    return str(text)


def _check_text(name: str, value: object, advice: str = "") -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a str, not {type(value).__name__}{advice}")


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{name} must be a whole number from 0 on, not {value!r}")


class Runner(Protocol):
    """Runs a coroutine and returns its result."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns."""
        ...


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return a method of a blocking facade: the async one of `self._inner`, run by `self._run`.

    It has the same arguments, types and docstring.
    """
    name = method.__name__

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        done: T = self._run(getattr(self._inner, name)(*args, **kwargs))
        return done

    return call


class SyncFiles(FilesHints):
    """The files of a sandbox, for blocking code."""

    def __init__(self, files: Files, run: Runner) -> None:
        self._inner, self._run = files, run

    ls = blocking(Files.ls)
    read = blocking(Files.read)
    read_raw = blocking(Files.read_raw)
    write = blocking(Files.write)
    edit = blocking(Files.edit)
    grep = blocking(Files.grep)
    glob = blocking(Files.glob)
    ls_info = blocking(Files.ls_info)
    grep_raw = blocking(Files.grep_raw)
    glob_info = blocking(Files.glob_info)
    stat = blocking(Files.stat)
    mkdir = blocking(Files.mkdir)
    delete = blocking(Files.delete)
    move = blocking(Files.move)
    upload = blocking(Files.upload)
    download = blocking(Files.download)


def run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, without an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a blocking operation has waited for an event loop")
