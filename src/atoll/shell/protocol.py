"""The interface that agents need of a sandbox: commands and files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from atoll.guest.shared.workspace import LINES, MAX_MATCHES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    from atoll.types import ExecuteResponse


@runtime_checkable
class SandboxBackendProtocol(Protocol):
    """A sandbox with a shell and files, for async code."""

    @property
    def id(self) -> str:
        """A name that no other sandbox has."""
        ...

    async def execute(self, command: str) -> ExecuteResponse:
        """Run a shell command."""
        ...

    async def ls(self, path: StrPath = ".") -> list[FileInfo]:
        """List a folder; an empty list if there is no such folder."""
        ...

    async def read(self, path: StrPath, offset: int = 0, limit: int = LINES) -> str:
        """Return numbered lines of a text file for a model; an error is returned as text."""
        ...

    async def read_raw(self, path: StrPath) -> FileData:
        """Return the lines and times of a text file; FileNotFoundError if there is none."""
        ...

    async def write(self, path: StrPath, content: str) -> WriteResult:
        """Create a text file and its parent folders; an existing file is not overwritten."""
        ...

    async def edit(
        self,
        path: StrPath,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - callers pass it by position
    ) -> EditResult:
        """Replace text that occurs exactly once, or every occurrence with `replace_all`."""
        ...

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
        ...

    async def glob(self, pattern: str, path: StrPath = ".") -> Listing[FileInfo]:
        """Find files and folders below `path` that match `pattern`, sorted, with dot files."""
        ...

    async def upload(
        self, files: Mapping[Any, bytes] | Iterable[tuple[StrPath, bytes]]
    ) -> list[UploadResult]:
        """Write files and overwrite existing ones; return one result each, in order."""
        ...

    async def download(self, paths: Iterable[StrPath]) -> list[DownloadResult]:
        """Read files; return one result each, in order."""
        ...
