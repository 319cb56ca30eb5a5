"""Results of file operations, and the check of a guest's or a remote shell's answers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from atoll.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
StrPath: TypeAlias = str | os.PathLike[str]
"""A path as callers give it: text, or a pathlib path."""


class FileError(StrEnum):
    """Why a file could not be read, written, moved or deleted."""

    FILE_NOT_FOUND = "file_not_found"
    PERMISSION_DENIED = "permission_denied"
    IS_DIRECTORY = "is_directory"
    INVALID_PATH = "invalid_path"
    TOO_LARGE = "too_large"
    NO_SPACE = "no_space"
    FILE_EXISTS = "file_exists"
    IO_ERROR = "io_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file or folder. For a symbolic link these are facts of the link, not of its target."""

    path: str
    """Relative to the folder that was listed; from stat(), the path that was asked for."""
    is_dir: bool
    size: int
    modified_at: str
    """ISO 8601, UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileData:
    """The lines of a text file, and its times."""

    content: list[str]
    created_at: str
    modified_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """The path that was written, or an error message that a model can act on."""

    path: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EditResult:
    """How many occurrences were replaced, or an error message that a model can act on."""

    path: str | None = None
    occurrences: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrepMatch:
    """A line that contains the pattern."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadResult:
    """Whether one file was uploaded."""

    path: str
    error: FileError | None = None
    reason: str | None = field(default=None, compare=False)
    """The error in words: the limit that the file exceeds, for example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadResult:
    """The content of one file, or why it cannot be read."""

    path: str
    content: bytes | None = None
    error: FileError | None = None
    reason: str | None = field(default=None, compare=False)
    """The error in words."""


class Listing(list[T], Generic[T]):
    """A list that knows whether it was cut (`truncated`)."""

    def __init__(self, items: list[T], *, truncated: bool = False) -> None:
        super().__init__(items)
        self.truncated = truncated


def checked(operation: str, answer: object) -> dict[str, Any]:
    """Return the answer if guest/shared/workspace can have given it, else raise SandboxError."""
    try:
        given = _of(dict, answer)
        failed = "error" in given and operation not in ("ls", "glob", "grep", "read")
        required, optional = (_FAILURES if failed else _ANSWERS)[operation]
        names = [*required.split(), *(name for name in optional.split() if name in given)]
        fields = {name: _FIELDS[name](given[name]) for name in names}
        if failed and operation not in ("write", "edit"):  # whose errors are sentences
            fields["error"] = FileError(fields["error"])
    except (LookupError, TypeError, ValueError, OverflowError) as exc:
        text = f"the answer to {operation} cannot be read: {str(exc)[:200]}"
        raise SandboxError(text) from None
    if operation in ("ls", "glob"):
        fields.setdefault("truncated", False)
    return fields


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value


def _entry(row: Any) -> list[Any]:
    path, is_dir, size, modified = row
    return [_of(str, path), _of(bool, is_dir), _of(int, size), float(modified)]


def _match(row: Any) -> list[Any]:
    path, line, text = row
    return [_of(str, path), _of(int, line), _of(str, text)]


def _text(value: Any) -> str:
    text: str = _of(str, value)
    return text


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "entries": lambda rows: [_entry(row) for row in rows],
    "entry": _entry,
    "matches": lambda rows: [_match(row) for row in rows],
    "truncated": bool,
    "text": _text,
    "content": lambda lines: [_text(line) for line in lines],
    "created": float,
    "modified": float,
    "path": _text,
    "occurrences": lambda count: _of(int, count),
    "data": lambda data: _of(bytes, data),
    "error": _text,
    "code": FileError,
    "reason": lambda reason: _text(reason)[:1000],
}
"""The check of each field that an answer can have."""
_ANSWERS = {
    **dict.fromkeys(("ls", "glob"), ("entries", "truncated")),
    "grep": ("matches truncated", ""),
    "read": ("text", "code"),
    "read_raw": ("content created modified", ""),
    **dict.fromkeys(("write", "edit"), ("path", "occurrences")),
    "download": ("data", ""),
    "stat": ("entry", ""),
    **dict.fromkeys(("upload", "delete", "move", "mkdir"), ("", "")),
}
"""The fields of an answer by operation: those that it must have, and those that it may have."""
_FAILURES = {
    **dict.fromkeys(("write", "edit"), ("error", "code")),
    **dict.fromkeys(("upload", "download"), ("error", "")),
    **dict.fromkeys(("read_raw", "stat", "delete", "move", "mkdir"), ("error reason", "")),
}
"""The same of an answer that reports an error."""
