"""What an agent needs of a place to work in: commands, and files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from atoll.guest.workspace import LINES, MAX_MATCHES

if TYPE_CHECKING:
    from collections.abc import Iterable

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

    async def ls(self, path: str = ".") -> list[FileInfo]:
        """What is in a folder; nothing if there is no such folder."""
        ...

    async def read(self, path: str, offset: int = 0, limit: int = LINES) -> str:
        """Lines of a text with their numbers, as for a model; what is wrong is said in the text."""
        ...

    async def read_raw(self, path: str) -> FileData:
        """A text's lines and times; FileNotFoundError, PermissionError, ... if there is none."""
        ...

    async def write(self, path: str, content: str) -> WriteResult:
        """Make a text, and the folders on the way; one that is there already is not touched."""
        ...

    async def edit(
        self, path: str, old_string: str, new_string: str, *, replace_all: bool = False
    ) -> EditResult:
        """Replace text exactly; it must be there once, or `replace_all` be asked for."""
        ...

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
        ...

    async def glob(self, pattern: str, path: str = ".") -> Listing[FileInfo]:
        """Files and folders below `path` that fit `pattern`, in order, dot files too."""
        ...

    async def upload(self, files: Iterable[tuple[str, bytes]]) -> list[UploadResult]:
        """Put files there, whatever was there before: one result each, in order."""
        ...

    async def download(self, paths: Iterable[str]) -> list[DownloadResult]:
        """Get files from there: one result each, in order."""
        ...
