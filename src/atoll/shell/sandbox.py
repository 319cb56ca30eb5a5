"""A foreign sandbox as a workspace: the file operations, built on its shell commands."""

from __future__ import annotations

import re
import secrets
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxError
from atoll.files.base import Files
from atoll.shell.commands import command, script
from atoll.shell.line import Line, check_shape
from atoll.shell.posix import PosixDialect
from atoll.shell.python import PythonDialect

if TYPE_CHECKING:
    from atoll.shell.line import Execute
    from atoll.types import ExecuteResponse


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
    found = re.search(rf"{mark} (python|sh|none)([a-z ]*)\.", response.output)
    if not found:
        seen = response.error or response.output.strip()[-300:]
        raise SandboxError(f"the sandbox runs no shell commands: {seen!r}")
    kind, missing = found[1], ", ".join(found[2].split())
    if kind == "none":
        raise SandboxError("the sandbox has neither python3 nor base64: install one of them there")
    if missing:
        raise SandboxError(f"the sandbox has no python3, and no {missing}: install them there")
    return PythonDialect(Line(execute)) if kind == "python" else PosixDialect(Line(execute))
