"""A guest's files by absolute paths, as the guest sees them, also outside the working folder.

The host opens files below the folders that it has descriptors of. For a file elsewhere, or behind a
link that leads out of them, a command inside the sandbox copies it from or to the guest's /tmp.

SECURITY: that command has the guest's rights and no more; the host follows no link and opens
nothing outside its descriptors.
"""

from __future__ import annotations

import os
import posixpath
import secrets
from typing import TYPE_CHECKING

from atoll.files.types import DownloadResult, FileError, UploadResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from atoll.files.base import Files
    from atoll.types import ExecuteResponse

    Shell = Callable[[Sequence[str]], Awaitable[ExecuteResponse]]

_LONGEST_PATH = 4096
_SHOWN = ("/app/", "/mnt/data/", "/tmp/", "/home/guest/")  # noqa: S108 - the guest's own
_CODES = {
    81: FileError.IS_DIRECTORY,
    82: FileError.FILE_NOT_FOUND,
    83: FileError.PERMISSION_DENIED,
    84: FileError.INVALID_PATH,
}
_FETCH = """\
path=$1 folder=$2 draft=$3
[ -d "$path" ] && exit 81
if [ ! -e "$path" ]; then [ -d "$folder" ] && [ ! -x "$folder" ] && exit 83; exit 82; fi
[ -f "$path" ] || exit 84
[ -r "$path" ] || exit 83
cat "$path" > "$draft" || { rm -f "$draft"; exit 1; }"""
_PLACE = """\
path=$1 folder=$2 draft=$3
trap 'rm -f "$draft"' EXIT
[ -d "$path" ] && exit 81
[ -p "$path" ] && exit 84
mkdir -p -- "$folder" 2>/dev/null || { [ -e "$folder" ] && exit 84; exit 83; }
[ -w "$path" ] || { [ ! -e "$path" ] && [ -w "$folder" ]; } || exit 83
( : >> "$path" ) 2>/dev/null || exit 83
cat "$draft" > "$path" """


class AbsolutePaths:
    """Uploads and downloads by absolute paths, for one sandbox that has a shell."""

    def __init__(self, files: Files, shell: Shell) -> None:
        self._files, self._shell = files, shell

    async def upload(self, path: str, data: bytes) -> UploadResult:
        """Write a file, and make its parent folders; an existing file is overwritten."""
        return UploadResult(path=path, error=await self._upload(path, data))

    async def _upload(self, path: str, data: bytes) -> FileError | None:
        if not _is_path(path):
            return FileError.INVALID_PATH
        if _is_shown(path):
            error = await self._put(path, data)
            if error is not FileError.INVALID_PATH:
                return error
        draft = _draft()
        return await self._put(draft, data) or await self._run(_PLACE, path, draft)

    async def download(self, path: str) -> DownloadResult:
        """Read a file."""
        if not _is_path(path):
            return DownloadResult(path=path, error=FileError.INVALID_PATH)
        if _is_shown(path):
            (result,) = await self._files.download([path])
            if result.error is not FileError.INVALID_PATH:
                return result
        draft = _draft()
        if failure := await self._run(_FETCH, path, draft):
            return DownloadResult(path=path, error=failure)
        try:
            (result,) = await self._files.download([draft])
        finally:
            await self._shell(["rm", "-f", draft])
        return DownloadResult(path=path, content=result.content, error=result.error)

    async def _put(self, path: str, data: bytes) -> FileError | None:
        return (await self._files.upload([(path, data)]))[0].error

    async def _run(self, script: str, path: str, draft: str) -> FileError | None:
        folder = posixpath.dirname(path) or "/"
        done = await self._shell(["sh", "-c", script, "sh", path, folder, draft])
        if done.exit_code == 0:
            return None
        return _CODES.get(done.exit_code or 0, FileError.IO_ERROR)


def _is_path(path: str) -> bool:
    """Return whether a path is absolute and short enough for the kernel, without a null byte."""
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:
        return False
    return path.startswith("/") and "\0" not in path and size < _LONGEST_PATH


def _is_shown(path: str) -> bool:
    """Return whether the host has a descriptor of the path's folder; the guest resolves `..`."""
    return path.startswith(_SHOWN) and ".." not in path.split("/")


def _draft() -> str:
    """Return a name in the guest's /tmp that nothing else has."""
    return f"/tmp/.atoll-{secrets.token_hex(8)}"  # noqa: S108 - the guest's own
