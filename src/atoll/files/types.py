"""Results of file operations."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

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
    """What is wrong, in words: the limit that the file exceeds, for example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadResult:
    """The content of one file, or why it cannot be read."""

    path: str
    content: bytes | None = None
    error: FileError | None = None
    reason: str | None = field(default=None, compare=False)
    """What is wrong, in words."""


class Listing(list[T], Generic[T]):
    """A list that knows whether it was cut (`truncated`)."""

    def __init__(self, items: list[T], *, truncated: bool = False) -> None:
        super().__init__(items)
        self.truncated = truncated
