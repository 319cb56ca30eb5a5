"""A sandbox provider for Inspect: `sandbox="atoll"` gives each sample a jail on this machine.

    Task(dataset=..., solver=..., sandbox=("atoll", AtollConfig(packages=["numpy"])))

Inspect finds it by an entry point. Commands run one after another in a sample, as the guest user:
a request for another user is refused. Every sandbox is at least jailed, or the sample fails.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from atoll.concurrency.portal import Portal
from atoll.errors import AtollError
from atoll.factory import merge, open_sandbox
from atoll.files.types import FileError
from atoll.integrations.common import missing
from atoll.policy import Capability
from atoll.sandbox.command import MAX_STDIN

try:
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        sandboxenv,
    )
    from inspect_ai.util._sandbox.environment import (
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
    )
    from pydantic import BaseModel, ConfigDict
except ImportError as exc:
    raise ImportError(missing("inspect-ai", "inspect_ai")) from exc

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from inspect_ai.util._sandbox.environment import SandboxConnection

    from atoll.policy import Isolation
    from atoll.sandbox.base import BaseSandbox
    from atoll.types import ExecuteResponse

T = TypeVar("T")
NEEDED = frozenset({Capability.SHELL, Capability.WORKSPACE})
USERS = ("guest",)
NOT_EXECUTABLE, TIMED_OUT = 126, 124
_MIB = 1 << 20
_OUTPUT = 16 * _MIB
_LIMITS = {"memory_bytes": 2048 * _MIB, "disk_bytes": 1024 * _MIB, "file_size_bytes": 512 * _MIB}
_WITH_STDIN = 'stdin=$1; shift; exec "$@" < "$stdin"'
_MAY_WRITE = '[ ! -e "$1" ] || [ -d "$1" ] || [ -w "$1" ]'
_ERRORS: dict[FileError, type[OSError]] = {
    FileError.FILE_NOT_FOUND: FileNotFoundError,
    FileError.PERMISSION_DENIED: PermissionError,
    FileError.IS_DIRECTORY: IsADirectoryError,
}


class AtollConfig(BaseModel):
    """Options of create_sandbox for the sandboxes of a task, such as `packages` and `policy`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    def options(self) -> dict[str, object]:
        """Return the options, with defaults for the limits that Inspect's tools need."""
        given = dict(self.__pydantic_extra__ or {})
        policy = {**_LIMITS, "stdout_max_bytes": _OUTPUT, "stderr_max_bytes": _OUTPUT}
        given["policy"] = {**policy, **given.get("policy", {})}
        return {"max_output_length": _OUTPUT, **given}


@sandboxenv(name="atoll")
class AtollSandboxEnvironment(SandboxEnvironment):  # type: ignore[misc]
    """One sandbox of one sample."""

    def __init__(self, box: BaseSandbox) -> None:
        super().__init__()
        self._box = box
        self._name = secrets.token_hex(4)

    @property
    def isolation(self) -> Isolation:
        """How strongly the sample is isolated from the host."""
        return self._box.isolation

    @classmethod
    async def sample_init(
        cls,
        task_name: str,  # noqa: ARG003 - Inspect's signature
        config: Any,
        metadata: dict[str, str],  # noqa: ARG003
    ) -> dict[str, SandboxEnvironment]:
        """Open a sandbox for a sample."""
        made = config if isinstance(config, AtollConfig) else AtollConfig()
        if config is not None and not isinstance(config, AtollConfig):
            raise TypeError(f"the sandbox atoll takes an AtollConfig, not {config!r:.100}")
        return {"default": cls(await _run(open_sandbox(merge(None, made.options()), NEEDED)))}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,  # noqa: ARG003
        config: Any,  # noqa: ARG003
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,  # noqa: ARG003, FBT001
    ) -> None:
        """End the sandboxes of a sample, with all that runs in them."""
        for environment in environments.values():
            await _run(environment.as_type(cls)._box.destroy())  # noqa: SLF001 - its own class

    @classmethod
    def config_deserialize(cls, config: dict[str, object]) -> BaseModel:
        """Return the configuration that a log holds."""
        return AtollConfig(**config)

    async def exec(  # noqa: PLR0917 - Inspect's signature
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,  # noqa: ASYNC109
        timeout_retry: bool = True,  # noqa: ARG002, FBT001, FBT002
        concurrency: bool = True,  # noqa: ARG002, FBT001, FBT002
    ) -> ExecResult[str]:
        """Run a program; TimeoutError ends it with all its children."""
        if user is not None and user not in USERS:
            raise SandboxUserUnsupportedError(
                f"a sandbox of Atoll has no user {user!r}: only guest"
            )
        data = input.encode() if isinstance(input, str) else input
        draft = await self._stored(data) if data is not None and len(data) > MAX_STDIN else None
        command = ["sh", "-c", _WITH_STDIN, "sh", draft, *cmd] if draft else cmd
        done = await self._shell(
            command,
            timeout_ms=None if timeout is None else timeout * 1000,
            cwd=cwd,
            env=env,
            stdin=None if draft else data,
        )
        if draft:
            await self._shell(["rm", "-f", draft])
        return _result(cmd, done, timeout)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file and make its parent folders; PermissionError if it is not writable."""
        data = contents.encode() if isinstance(contents, str) else contents
        path = _absolute(file)
        allowed = await self._shell(["sh", "-c", _MAY_WRITE, "sh", path])
        if allowed.exit_code != 0:
            raise _error(FileError.PERMISSION_DENIED, file)
        (done,) = await _run(self._box.files.upload([(path, data)], absolute=True))
        if done.error is not None:
            raise _error(done.error, file)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...  # noqa: FBT002

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:  # noqa: FBT001, FBT002
        """Return a file as text or bytes."""
        (result,) = await _run(self._box.files.download([_absolute(file)], absolute=True))
        if result.content is None:
            raise _error(result.error or FileError.IO_ERROR, file)
        if len(result.content) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return result.content.decode() if text else result.content

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Raise NotImplementedError: no command of another process leads into this sandbox."""
        raise NotImplementedError("a sandbox of Atoll belongs to the process that opened it")

    def default_polling_interval(self) -> float:
        """Return the seconds between polls: short, because the sandbox is on this machine."""
        return 0.2

    async def _stored(self, data: bytes) -> str:
        """Write input that is too long for a message to a file of the guest; return its path."""
        path = f"/tmp/.atoll-stdin-{secrets.token_hex(8)}"  # noqa: S108 - the guest's own
        (done,) = await _run(self._box.files.upload([(path, data)]))
        if done.error is not None:
            raise _error(done.error, path)
        return path

    async def _shell(self, command: list[str], **options: Any) -> ExecuteResponse:
        try:
            return await _run(self._box.shell(command, merge_stderr=False, **options))
        except AtollError as exc:
            raise SandboxUnavailableError(f"the sandbox cannot run {command[0]!r}: {exc}") from exc


async def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run work in Atoll's own loop: samples may be set up and ended in different ones."""
    return await Portal.shared().run_from_loop(work)


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"/app/{path}"


def _result(cmd: list[str], done: ExecuteResponse, timeout: float | None) -> ExecResult[str]:
    if done.exit_code == TIMED_OUT and done.error is not None:
        raise TimeoutError(f"{cmd[0]!r} took longer than {timeout} s")
    if done.exit_code == NOT_EXECUTABLE and done.error is not None:
        raise PermissionError(f"{cmd[0]!r} cannot be executed: {done.error}")
    limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
    if done.truncated or max(len(done.stdout), len(done.stderr)) > limit:
        raise OutputLimitExceededError(
            SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, done.output[:limit]
        )
    code = -1 if done.exit_code is None else done.exit_code
    stderr = done.stderr if done.error is None else f"{done.stderr}{done.error}\n"
    return ExecResult(success=code == 0, returncode=code, stdout=done.stdout, stderr=stderr)


def _error(code: FileError, path: str) -> OSError:
    words = {FileError.IS_DIRECTORY: "it is a directory", FileError.FILE_NOT_FOUND: "not found"}
    return _ERRORS.get(code, OSError)(f"{path}: {words.get(code, code.value.replace('_', ' '))}")
