"""What file operations give back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class FileError(StrEnum):
    """Why a file could not be taken or given."""

    FILE_NOT_FOUND = "file_not_found"
    PERMISSION_DENIED = "permission_denied"
    IS_DIRECTORY = "is_directory"
    INVALID_PATH = "invalid_path"
    TOO_LARGE = "too_large"
    NO_SPACE = "no_space"
    IO_ERROR = "io_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file or folder. A link is told as itself, never as what it leads to."""

    path: str
    """Relative to the folder that was asked for."""
    is_dir: bool
    size: int
    modified_at: str
    """ISO 8601, UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileData:
    """A text, line by line."""

    content: list[str]
    created_at: str
    modified_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """What became of a write: the path, or the error in words that a model can act on."""

    path: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EditResult:
    """What became of an edit."""

    path: str | None = None
    occurrences: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrepMatch:
    """A line with the pattern in it."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadResult:
    """What became of one file that was given."""

    path: str
    error: FileError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadResult:
    """One file that was asked for."""

    path: str
    content: bytes | None = None
    error: FileError | None = None


class Listing(list[T], Generic[T]):
    """A list that says whether there was more."""

    def __init__(self, items: list[T], *, truncated: bool = False) -> None:
        super().__init__(items)
        self.truncated = truncated
