"""A backend for deepagents: its agents' commands and files are those of a sandbox.

    agent = create_deep_agent(model=..., backend=AtollSandbox())

deepagents' own base class does the rest by running sh and python3 in the guest.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Self, Unpack

from atoll.errors import ConfigError
from atoll.integrations.common import missing, take_box
from atoll.policy import Capability, check_positive

try:
    from deepagents.backends.protocol import (
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
    )
    from deepagents.backends.sandbox import BaseSandbox
except ImportError as exc:
    raise ImportError(missing("deepagents", "deepagents")) from exc

if TYPE_CHECKING:
    from atoll.factory import SandboxOptions
    from atoll.policy import Isolation
    from atoll.sandbox.blocking import SyncSandbox

NEEDED = frozenset({Capability.SHELL, Capability.WORKSPACE})
OUTPUT_LENGTH = 4_000_000
"""Characters: deepagents reads up to 500 KiB at once, which may be six times as long as JSON."""
NOT_RUN = 2


class AtollSandbox(BaseSandbox):
    """A sandbox for deepagents, blocking and async; its commands run one after another.

    `box` is an open sandbox, which its owner destroys. Without it one is opened with the `options`
    of create_sandbox; close() or the end of a `with` block ends it. `timeout` is the default of a
    command in seconds; if unset, the sandbox's own applies.
    """

    def __init__(
        self,
        box: SyncSandbox | None = None,
        *,
        timeout: float | None = None,
        **options: Unpack[SandboxOptions],
    ) -> None:
        check_positive("timeout", timeout)
        self._owned = box is None
        if box is None:
            options.setdefault("max_output_length", OUTPUT_LENGTH)
        self._box = take_box(box, options, NEEDED)
        self._timeout = timeout
        self._portal = self._box.portal
        self._id = f"atoll-{self._box.backend}-{secrets.token_hex(4)}"

    @property
    def isolation(self) -> Isolation:
        """How strongly commands are isolated from the host."""
        return self._box.isolation

    @property
    def id(self) -> str:
        """A unique name."""
        return self._id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command in the guest; if a limit ended it, its output says so.

        `timeout` is in seconds; 0 means the sandbox's own limit.
        """
        return self._portal.run(self._execute(command, timeout))

    async def aexecute(
        self,
        command: str,
        *,
        timeout: int | None = None,  # noqa: ASYNC109 - deepagents' word
    ) -> ExecuteResponse:
        """As execute; the command ends if its caller is cancelled."""
        return await self._portal.run_from_loop(self._execute(command, timeout))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Upload files to absolute paths of the guest; return one result each, in order."""
        return self._portal.run(self._upload(files))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """As upload_files."""
        return await self._portal.run_from_loop(self._upload(files))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Download files from absolute paths of the guest; return one result each, in order."""
        return self._portal.run(self._download(paths))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """As download_files."""
        return await self._portal.run_from_loop(self._download(paths))

    def close(self) -> None:
        """End the sandbox, if it was opened here. Calling it twice is harmless."""
        if self._owned:
            self._box.destroy()

    async def aclose(self) -> None:
        """As close."""
        if self._owned:
            await self._portal.run_from_loop(self._box.inner.destroy())

    async def _execute(self, command: str, timeout: float | None) -> ExecuteResponse:  # noqa: ASYNC109
        seconds = self._timeout if timeout is None else timeout
        limit = seconds * 1000 if seconds else None
        try:
            done = await self._box.inner.shell(command, timeout_ms=limit)
        except ConfigError as exc:  # a model's mistake, for the model to read
            return ExecuteResponse(output=f"Error: {exc}", exit_code=NOT_RUN)
        output = _joined(done.output, done.error) if done.error else done.output
        return ExecuteResponse(output=output, exit_code=done.exit_code, truncated=done.truncated)

    async def _upload(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        done = await self._box.inner.files.upload(files, absolute=True)
        return [FileUploadResponse(path=result.path, error=_plain(result.error)) for result in done]

    async def _download(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [
            FileDownloadResponse(
                path=result.path, content=result.content, error=_plain(result.error)
            )
            for result in await self._box.inner.files.download(paths, absolute=True)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()


def _joined(output: str, line: str) -> str:
    return f"{output}{'' if output.endswith(chr(10)) or not output else chr(10)}{line}"


def _plain(error: str | None) -> str | None:
    """Return an error code as a plain str, not a StrEnum, for code that checks the exact type."""
    return None if error is None else str(error)
