"""The async Sandbox protocol, and the base class that every backend builds on."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

from atoll import guard
from atoll.errors import ConfigError, UnsupportedError
from atoll.files.base import NoFiles
from atoll.guest.rpc import MAX_MESSAGE_BYTES
from atoll.log import SECURITY_EVENTS, SandboxLogger
from atoll.policy import Capability, ExecutionPolicy, Isolation
from atoll.types import Outcome, SandboxResult

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from atoll.files.base import Files
    from atoll.types import ExecuteResponse

MAX_CODE_LENGTH = MAX_MESSAGE_BYTES // 12  # a character may take 12 bytes of JSON

MAX_COMMAND_LENGTH = 2 << 20
QUICKLY_CHECKED = 20_000
"""Characters that a guard looks through faster than a thread is asked to."""


def check_code(code: str) -> None:
    """Refuse what is no text, and more of it than a message can carry."""
    if not isinstance(code, str):
        raise ConfigError(f"code must be a str, not {type(code).__name__}")
    if len(code) > MAX_CODE_LENGTH:
        raise ConfigError(f"the code has {len(code):,} characters; pass data as context instead")


def check_command(command: str) -> None:
    """Refuse what no shell can be given."""
    if not isinstance(command, str):
        raise ConfigError(f"a command must be a str, not {type(command).__name__}")
    if not command.strip():
        raise ConfigError("the command is empty: give one that a shell can run")
    if "\0" in command:
        raise ConfigError("the command has a zero byte, which no shell reads: leave it out")
    if len(command) > MAX_COMMAND_LENGTH:
        length = f"{len(command):,} characters, of at most {MAX_COMMAND_LENGTH:,}"
        raise ConfigError(f"the command has {length}: put it into a file and run that")
    try:
        command.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as exc:
        raise ConfigError(f"the command is no text: {exc.reason}; leave that out") from None


@runtime_checkable
class Sandbox(Protocol):
    """A place where guest code runs. Faults of the code are results; faults of the host raise."""

    backend: ClassVar[str]
    capabilities: ClassVar[frozenset[Capability]]

    @property
    def isolation(self) -> Isolation:
        """How strongly the guest is kept in."""
        ...

    async def initialize(self, context: Any = None) -> None:
        """Start, with `context` as a variable of the guest. Again: start afresh."""
        ...

    async def execute(
        self, code: str, *, timeout_ms: float | None = None, key: str | None = None
    ) -> SandboxResult:
        """Run a cell; variables live on. With a `key` used before: its result, and no run."""
        ...

    async def shell(self, command: str, *, timeout_ms: float | None = None) -> ExecuteResponse:
        """Run a shell command in the working folder, in the session's own walls and limits."""
        ...

    async def validate_code(self, code: str) -> bool:
        """Whether the code compiles. Nothing of it runs."""
        ...

    async def get_variable(self, name: str, default: Any = None) -> Any:
        """A guest variable as a plain value; `default` if there is none of that name."""
        ...

    async def cancel(self) -> None:
        """Interrupt the running cell or command; nothing happens if none runs."""
        ...

    @property
    def files(self) -> Files:
        """The guest's files, from outside: list, read, write, edit, search, upload, download."""
        ...

    async def fork(self) -> Sandbox:
        """A live clone with all that is in it, files too; each goes its own way from here."""
        ...

    async def checkpoint(self) -> str:
        """Keep the session as it is now; the mark to roll back to."""
        ...

    async def rollback(self, mark: str) -> None:
        """Be again as at the mark, which stays good."""
        ...

    async def branches(self) -> tuple[str, ...]:
        """The marks that are kept, oldest first."""
        ...

    async def save(self) -> bytes:
        """Variables and files as bytes for create_sandbox(state=...), here or elsewhere."""
        ...

    async def destroy(self) -> None:
        """Let go of everything. Calling it twice is harmless."""
        ...


class BaseSandbox(ABC):
    """Holds policy, workspace and logger; a backend implements `execute` and `validate_code`."""

    backend: ClassVar[str] = "custom"
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    runtime_memory: ClassVar[int] = 0
    """Bytes that the interpreter itself may take on top of `policy.memory_bytes`."""

    def __init__(
        self,
        policy: ExecutionPolicy | None = None,
        workspace: Path | None = None,
        logger: SandboxLogger | None = None,
    ) -> None:
        self.policy = policy or ExecutionPolicy()
        self.workspace = workspace
        self.logger = logger or SandboxLogger()

    @abstractmethod
    async def execute(
        self, code: str, *, timeout_ms: float | None = None, key: str | None = None
    ) -> SandboxResult:
        """Run a cell."""

    @abstractmethod
    async def validate_code(self, code: str) -> bool:
        """Whether the code compiles. Nothing of it runs."""

    @property
    def isolation(self) -> Isolation:
        """How strongly the guest is kept in; nothing unless the backend says otherwise."""
        return Isolation.NONE

    async def initialize(self, context: Any = None) -> None:  # noqa: B027
        """Start. A backend with nothing to start has nothing to do."""

    async def get_variable(self, name: str, default: Any = None) -> Any:  # noqa: ARG002
        """A backend without state has no variables."""
        return default

    async def cancel(self) -> None:  # noqa: B027
        """A backend that cannot cancel does nothing; its capabilities say so."""

    @property
    def files(self) -> Files:
        """The guest's files; their use is an UnsupportedError where a backend has no WORKSPACE."""
        return NoFiles(self.backend)

    async def shell(
        self,
        command: str,  # noqa: ARG002
        *,
        timeout_ms: float | None = None,  # noqa: ARG002
    ) -> ExecuteResponse:
        """Run a shell command; UnsupportedError where the backend declares no SHELL."""
        raise UnsupportedError(self.backend, Capability.SHELL)

    async def fork(self) -> BaseSandbox:
        """A live clone; UnsupportedError where the backend declares no FORK."""
        raise UnsupportedError(self.backend, Capability.FORK)

    async def checkpoint(self) -> str:
        """Keep the session as it is now."""
        raise UnsupportedError(self.backend, Capability.FORK)

    async def rollback(self, mark: str) -> None:  # noqa: ARG002
        """Be again as at the mark."""
        raise UnsupportedError(self.backend, Capability.FORK)

    async def branches(self) -> tuple[str, ...]:
        """The marks that are kept."""
        raise UnsupportedError(self.backend, Capability.FORK)

    async def save(self) -> bytes:
        """Variables and files as bytes; UnsupportedError where the backend declares no SAVE."""
        raise UnsupportedError(self.backend, Capability.SAVE)

    async def destroy(self) -> None:  # noqa: B027
        """A backend that holds nothing has nothing to let go."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.destroy()

    async def _guarded(self, code: str, name: str | None) -> tuple[str, SandboxResult | None]:
        """Have the guard `name` check a cell; return what to run, and the result if it refuses."""
        if name is None:
            return code, None
        if len(code) <= QUICKLY_CHECKED:
            reading = guard.read(code, name)
        else:
            reading = await asyncio.to_thread(guard.read, code, name)
        found = reading.violations
        if not reading.parsed and await self.validate_code(code):
            found = (guard.unread(),)  # nothing that was not checked may run
        if not found:
            return reading.code, None
        result = SandboxResult(
            kind=Outcome.REFUSED,
            error=guard.describe(found),
            error_type=guard.ERROR_TYPE,
            exit_code=1,
            isolation=self.isolation,
        )
        self._log_execution_metrics(result)
        return code, result

    def _log_execution_metrics(self, result: SandboxResult) -> None:
        """Hand a result to the logger; an outcome that hints at an attack is an event as well."""
        if event := SECURITY_EVENTS.get(result.kind):
            self.logger.log_security_event(event, error=result.error)
        self.logger.log_execution_complete(result)
