"""A foreign sandbox as a workspace: the file operations, built on its shell commands."""

from __future__ import annotations

import ast
import base64
import json
import re
import secrets
import zlib
from abc import abstractmethod
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from atoll.errors import SandboxError
from atoll.files.base import Files
from atoll.files.types import checked
from atoll.guest.shared.workspace import LINES, MAX_MATCHES
from atoll.shell.posix import PosixDialect
from atoll.shell.remote_shell import (
    MAX_ANSWER,
    MAX_FILE,
    AnswerTooLargeError,
    RemoteShell,
    check_shape,
    command,
    encoded,
    script,
)

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
    from atoll.shell.remote_shell import Execute
    from atoll.types import ExecuteResponse

READ_ONLY = frozenset({"ls", "read", "read_raw", "grep", "glob", "download", "stat"})


class ShellSandbox(Files):
    """Any sandbox that can run a shell command. A subclass says how, and its `id`.

        class Container(atoll.aio.ShellSandbox):
            id = "container-1"

            async def execute(self, command):
                output, code = await my_client.run(["sh", "-c", command])
                return atoll.ExecuteResponse(output=output, exit_code=code)

        await Container().read("/etc/os-release")

    Paths are as its shell sees them. If it has `python3`, the operations are the same code as
    everywhere; otherwise they need `sh`, `base64`, `find`, `grep` and `stat`, which a minimal
    container has. A `regex` is then one of `grep -E`.
    """

    @property
    @abstractmethod
    def id(self) -> str:
        """A name that no other sandbox has."""

    @abstractmethod
    async def execute(self, command: str) -> ExecuteResponse:
        """Run a shell command, up to 128 KiB long; stdout and stderr may be merged."""

    _speaker: PythonDialect | PosixDialect | None = None

    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        speaker = self._speaker
        if speaker is None:
            speaker = self._speaker = await _find_out(self.execute)
        return await speaker.run(operation, params)


async def _find_out(execute: Execute) -> PythonDialect | PosixDialect:
    """Return the dialect for the sandbox's shell: Python, or POSIX tools."""
    mark = secrets.token_hex(16)
    response = await execute(command(script("probe"), mark))
    check_shape(response)
    match = re.search(rf"{mark} (python|sh|none)([a-z ]*)\.", response.output)
    if not match:
        seen = response.error or response.output.strip()[-300:]
        raise SandboxError(f"the sandbox runs no shell commands: {seen!r}")
    kind, missing = match[1], ", ".join(match[2].split())
    if kind == "none":
        raise SandboxError("the sandbox has neither python3 nor base64: install one of them there")
    if missing:
        raise SandboxError(f"the sandbox has no python3, and no {missing}: install them there")
    return (
        PythonDialect(RemoteShell(execute))
        if kind == "python"
        else PosixDialect(RemoteShell(execute))
    )


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
        """List a folder; an empty list if the folder does not exist."""
        ...

    async def read(self, path: StrPath, offset: int = 0, limit: int = LINES) -> str:
        """Return numbered lines of a text file for a model; an error is returned as text."""
        ...

    async def read_raw(self, path: StrPath) -> FileData:
        """Return the lines and times of a text file; FileNotFoundError if it does not exist."""
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


class PythonDialect:
    """Runs operations by `python3`, 3.8 or later."""

    def __init__(self, line: RemoteShell) -> None:
        self._line = line

    async def run(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        """Run an operation of guest/shared/workspace."""
        data = _request(operation, params)
        twice = operation in READ_ONLY
        answer = _unpack(await self._line.ask("python", _program(), data=data, twice=twice))
        if "invalid" in answer:
            raise ValueError(str(answer["invalid"])[:1000])
        return checked(operation, answer)


def _request(operation: str, params: dict[str, Any]) -> bytes:
    if "data" in params:
        params = {**params, "data": base64.b64encode(params["data"]).decode("ascii")}
    request = {"modules": _modules(), "most": MAX_FILE, "operation": operation, "params": params}
    return zlib.compress(json.dumps(request).encode())


def _unpack(packed: bytes) -> dict[str, Any]:
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(packed, MAX_ANSWER)
        if unpacking.unconsumed_tail:
            raise AnswerTooLargeError("the answer is too large: ask for less")
        answer = json.loads(text)
        if "data" in answer:
            answer["data"] = base64.b64decode(answer["data"], validate=True)
    except (zlib.error, ValueError, TypeError, RecursionError) as exc:
        raise SandboxError(f"the sandbox's answer cannot be read: {str(exc)[:200]}") from None
    if not isinstance(answer, dict):
        raise SandboxError("the sandbox's answer cannot be read: it is not a JSON object")
    return answer


@cache
def _program() -> str:
    return encoded(zlib.compress(_source("file_script").encode()))


@cache
def _modules() -> dict[str, str]:
    """Return the sources of the modules that the operations need, by name."""
    sources: dict[str, str] = {}
    wanted = ["workspace", "local_files"]
    while wanted:
        name = wanted.pop()
        if name not in sources:
            sources[name] = _source(name)
            wanted += _siblings(sources[name])
    return sources


def _siblings(source: str) -> list[str]:
    """Return the sibling modules that a module imports."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return [
        name
        for node in nodes
        if node.level == 1
        for name in ([node.module] if node.module else [alias.name for alias in node.names])
    ]


def _source(name: str) -> str:
    return (files("atoll.guest.shared") / f"{name}.py").read_text()
