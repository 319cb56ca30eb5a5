"""The file operations, typed and async. Where the files are, a subclass knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError, UnsupportedError
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
from atoll.guest.workspace import LINES, MAX_MATCHES

if TYPE_CHECKING:
    from collections.abc import Iterable


class Files(ABC):
    """A workspace. Paths are relative to the working folder; `/x` is `x` there."""

    @abstractmethod
    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        """Carry out an operation of guest/workspace; ValueError if its arguments make no sense."""

    async def ls(self, path: str = ".") -> Listing[FileInfo]:
        """What is in a folder; nothing if there is no such folder."""
        answer = await self._run("ls", path=path)
        return Listing(_infos(answer), truncated=answer["truncated"])

    async def read(self, path: str, offset: int = 0, limit: int = LINES) -> str:
        """Lines of a text with their numbers, as for a model; what is wrong is said in the text."""
        _check_count("offset", offset)
        _check_count("limit", limit)
        return str((await self._run("read", path=path, offset=offset, limit=limit))["text"])

    async def read_raw(self, path: str) -> FileData:
        """A text's lines and times; FileNotFoundError, PermissionError, ... if there is none."""
        answer = await self._run("read_raw", path=path)
        if "error" in answer:
            raise _error(FileError(answer["error"]), path, answer["reason"])
        created, modified = (_moment(answer[name]) for name in ("created", "modified"))
        return FileData(content=answer["content"], created_at=created, modified_at=modified)

    async def write(self, path: str, content: str) -> WriteResult:
        """Make a text, and the folders on the way; one that is there already is not touched."""
        _check_text("content", content)
        return WriteResult(**await self._run("write", path=path, content=content))

    async def edit(
        self, path: str, old_string: str, new_string: str, *, replace_all: bool = False
    ) -> EditResult:
        """Replace text exactly; it must be there once, or `replace_all` be asked for."""
        _check_text("old_string", old_string)
        _check_text("new_string", new_string)
        params = {"old": old_string, "new": new_string, "replace_all": bool(replace_all)}
        return EditResult(**await self._run("edit", path=path, **params))

    async def grep(
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
        _check_text("pattern", pattern)
        _check_count("max_results", max_results)
        if glob is not None:
            _check_text("glob", glob)
        params = {"glob": glob, "regex": bool(regex), "ignore_case": bool(ignore_case)}
        answer = await self._run(
            "grep", pattern=pattern, path=path, max_results=max_results, **params
        )
        found = [
            GrepMatch(path=where, line=line, text=text) for where, line, text in answer["matches"]
        ]
        return Listing(found, truncated=answer["truncated"])

    async def glob(self, pattern: str, path: str = ".") -> Listing[FileInfo]:
        """Files and folders below `path` that fit `pattern`, in order, dot files too."""
        _check_text("pattern", pattern)
        answer = await self._run("glob", pattern=pattern, path=path)
        return Listing(_infos(answer), truncated=answer["truncated"])

    async def upload(self, files: Iterable[tuple[str, bytes]]) -> list[UploadResult]:
        """Put files there, whatever was there before: one result each, in order."""
        return [await self._upload(*_checked_pair(pair)) for pair in files]

    async def download(self, paths: Iterable[str]) -> list[DownloadResult]:
        """Get files from there: one result each, in order."""
        if isinstance(paths, str | bytes):
            raise ConfigError(f"download takes a list of paths: [{paths!r}]")
        return [await self._download(path) for path in paths]

    async def _upload(self, path: str, data: bytes) -> UploadResult:
        answer = await self._run("upload", path=path, data=data)
        return UploadResult(path=path, error=_code(answer))

    async def _download(self, path: str) -> DownloadResult:
        answer = await self._run("download", path=path)
        return DownloadResult(path=path, content=answer.get("data"), error=_code(answer))

    async def _run(self, operation: str, *, path: str, **params: Any) -> dict[str, Any]:
        _check_text("path", path)
        try:
            return await self._ask(operation, {"path": path, **params})
        except ValueError as exc:
            raise ConfigError(str(exc)) from None


class NoFiles(Files):
    """Of a backend that has none to show."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        raise UnsupportedError(self._backend, f"{operation} files")


def _infos(answer: dict[str, Any]) -> list[FileInfo]:
    return [
        FileInfo(path=path, is_dir=is_dir, size=size, modified_at=_moment(modified))
        for path, is_dir, size, modified in answer["entries"]
    ]


def _moment(seconds: float) -> str:
    """As ISO 8601; a guest may set any time, also one that no calendar has."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        moment = datetime.fromtimestamp(0, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _code(answer: dict[str, Any]) -> FileError | None:
    return FileError(answer["error"]) if "error" in answer else None


def _error(code: FileError, path: str, reason: str) -> OSError:
    kinds: dict[FileError, type[OSError]] = {
        FileError.FILE_NOT_FOUND: FileNotFoundError,
        FileError.PERMISSION_DENIED: PermissionError,
        FileError.IS_DIRECTORY: IsADirectoryError,
    }
    if code is FileError.FILE_NOT_FOUND:
        return FileNotFoundError(f"File '{path}' not found")
    return kinds.get(code, OSError)(f"File '{path}' cannot be read: {reason}")


def _checked_pair(pair: object) -> tuple[str, bytes]:
    """A file to put somewhere; bytes() alone would make zeros of a number."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ConfigError(f"upload takes a list of pairs (path, bytes), not of {pair!r:.100}")
    path, data = pair
    _check_text("path", path)
    if not isinstance(data, bytes | bytearray | memoryview):
        text = f"what is uploaded to {path!r} must be bytes, not {type(data).__name__}"
        raise ConfigError(f"{text}: encode() a text")
    return path, bytes(data)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a str, not {type(value).__name__}")


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{name} must be a whole number from 0 on, not {value!r}")
