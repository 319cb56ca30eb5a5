"""A guest's files by absolute paths, as the guest sees them, wherever in it they are.

The folders that the host has descriptors of are used from outside. To a file elsewhere, or behind a
link out of them, a command inside makes the way from or to one of them: the guest's own rights
decide, and no size is too much for a command or for what it may print.
"""

from __future__ import annotations

import os
import posixpath
import secrets
import shlex
from typing import TYPE_CHECKING

from atoll.files.types import FileError
from atoll.jail.spec import SHOWN_FOLDERS, WORK_ALIAS

if TYPE_CHECKING:
    from atoll.sandbox import BaseSandbox

_LONGEST_PATH = 4096
_ROOTS = tuple(f"{root}/" for root in (*SHOWN_FOLDERS, WORK_ALIAS))
_CODES = {
    81: FileError.IS_DIRECTORY,
    82: FileError.FILE_NOT_FOUND,
    83: FileError.PERMISSION_DENIED,
    84: FileError.INVALID_PATH,
}
_FETCH = """\
[ -d {path} ] && exit 81
if [ ! -e {path} ]; then [ -d {folder} ] && [ ! -x {folder} ] && exit 83; exit 82; fi
[ -f {path} ] || exit 84
[ -r {path} ] || exit 83
cat {path} > {draft} || {{ rm -f {draft}; exit 1; }}"""
_PLACE = """\
trap 'rm -f {draft}' EXIT
[ -d {path} ] && exit 81
[ -p {path} ] && exit 84
mkdir -p -- {folder} 2>/dev/null || {{ [ -e {folder} ] && exit 84; exit 83; }}
[ -w {path} ] || {{ [ ! -e {path} ] && [ -w {folder} ]; }} || exit 83
cat {draft} > {path}"""


class Anywhere:
    """The files of one sandbox, which has a shell."""

    def __init__(self, box: BaseSandbox) -> None:
        self._box = box

    async def upload(self, path: str, data: bytes) -> str | None:
        """Put a file there, and folders on the way; what went wrong, in a word if there is one."""
        if not _is_path(path):
            return FileError.INVALID_PATH
        if _is_shown(path):
            error = await self._put(path, data)
            if error is not FileError.INVALID_PATH:
                return error
        draft = _draft()
        return await self._put(draft, data) or await self._run(_PLACE, path, draft)

    async def download(self, path: str) -> tuple[bytes | None, str | None]:
        """A file's bytes, or what went wrong."""
        if not _is_path(path):
            return None, FileError.INVALID_PATH
        if _is_shown(path):
            content, error = await self._get(path)
            if error is not FileError.INVALID_PATH:
                return content, error
        draft = _draft()
        if failure := await self._run(_FETCH, path, draft):
            return None, failure
        try:
            return await self._get(draft)
        finally:
            await self._box.shell(f"rm -f {draft}")

    async def _put(self, path: str, data: bytes) -> FileError | None:
        return (await self._box.files.upload([(path, data)]))[0].error

    async def _get(self, path: str) -> tuple[bytes | None, FileError | None]:
        done = (await self._box.files.download([path]))[0]
        return done.content, done.error

    async def _run(self, command: str, path: str, draft: str) -> str | None:
        names = {"path": path, "folder": posixpath.dirname(path) or "/"}
        quoted = {name: shlex.quote(text) for name, text in names.items()}
        done = await self._box.shell(command.format(**quoted, draft=draft))
        if done.exit_code == 0:
            return None
        return _CODES.get(done.exit_code or 0) or done.error or _last_line(done.output)


def _is_path(path: str) -> bool:
    """Whether it is absolute, and the kernel can be given it."""
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:
        return False
    return path.startswith("/") and "\0" not in path and size < _LONGEST_PATH


def _is_shown(path: str) -> bool:
    """Whether it is below a folder that we have too; `..` is for the guest to follow."""
    return path.startswith(_ROOTS) and ".." not in path.split("/")


def _draft() -> str:
    """A name in the guest's /tmp that nothing else has."""
    return f"/tmp/.atoll-{secrets.token_hex(8)}"  # noqa: S108 - the jail's own


def _last_line(output: str) -> str:
    return (output.strip().splitlines() or [FileError.IO_ERROR])[-1][:200]
