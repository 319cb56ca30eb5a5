"""ClientSandbox: a session that another process holds, used as if it were here.

Every method is a request (see sandbox/verbs); a subclass knows how to send it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Unpack

from atoll.errors import IsolationError
from atoll.log import SECURITY_EVENTS
from atoll.policy import Isolation, check_positive
from atoll.sandbox import command as commands
from atoll.sandbox import context as contexts
from atoll.sandbox import signatures, turns, verbs
from atoll.sandbox.base import MAX_CODE_LENGTH, BaseSandbox, check_code, check_options, check_port
from atoll.sandbox.idempotency import check_key

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from atoll.config import Handler, SandboxConfig
    from atoll.sandbox.base import ExecuteOptions, ToolChange
    from atoll.sandbox.bridge import HostBridge
    from atoll.sandbox.command import Command, CommandOptions
    from atoll.sandbox.wire.answers import GuestAnswer
    from atoll.types import CodeFault, CommittedImage, ExecuteResponse, ListeningPort, SandboxResult

R = TypeVar("R")


class ClientSandbox(BaseSandbox):
    """Checks and logs here; the other side holds the session's turn and its keys."""

    runtime_memory: ClassVar[int] = 32 << 20

    def __init__(self, config: SandboxConfig) -> None:
        super().__init__(config.policy, config.workspace, config.logger)
        self._config = config
        self._level = Isolation.NONE
        self._bridge: HostBridge | None = None
        self._failure: Exception | None = None
        """What one of the caller's functions raised while the code ran."""
        self._context: Any = None
        self._changing_tools = asyncio.Lock()
        self.context_is_shared = False

    @abstractmethod
    async def _send(self, request: verbs.Request[R]) -> R:
        """Send a request to the session; return its result, checked in shape."""

    @property
    def isolation(self) -> Isolation:
        """The level that this sandbox really has, as the other side reports it."""
        return self._level

    @property
    def tools(self) -> Mapping[str, Handler]:
        """The host functions that guest code may call now, by name."""
        return self._config.tools

    async def _change_tools(self, change: ToolChange) -> None:
        self._require_open()
        assert self._bridge is not None
        async with self._changing_tools:
            old = self._config.tools
            self._config = dataclasses.replace(self._config, tools=change(old))
            self._bridge.exchange_tools(old, self._config.tools)
            described = signatures.describe_all(self._config.tools)
            await self._send(verbs.SetTools(tools=described))

    async def execute(
        self,
        code: str,
        *,
        timeout_ms: float | None = None,
        key: str | None = None,
        **options: Unpack[ExecuteOptions],
    ) -> SandboxResult:
        """Run a cell. After a result with `state_lost` the next cell gets a fresh guest."""
        if options:
            check_options(self.backend, options)
        if timeout_ms is not None or key is not None:
            check_positive("timeout_ms", timeout_ms)
            check_key(key)
        if type(code) is not str or len(code) > MAX_CODE_LENGTH:
            check_code(code)
        if self._config.guard is not None:
            self._require_open()
            code, refusal = await self._guarded(code, self._config.guard)
            if refusal is not None:
                return refusal
        if self._logs():
            self.logger.log_execution_start("python", self.policy, code)
        result = await self._run(verbs.Execute(code=code, timeout_ms=timeout_ms, key=key))
        if result.isolation is not self._level:
            self._check_level(result.isolation)
        if result.kind in SECURITY_EVENTS or self._logs():
            self._log_execution_metrics(result)
        if self._failure is not None:
            raise self._failure
        return result

    async def shell(
        self,
        command: Command,
        *,
        timeout_ms: float | None = None,
        **options: Unpack[CommandOptions],
    ) -> ExecuteResponse:
        """Run a command with bash, or sh; what it leaves running ends with the session."""
        request = verbs.Shell.of(command, timeout_ms, options)
        self.logger.log_execution_start("shell", self.policy, commands.shown(command))
        response = await self._run(request)
        self.logger.log_shell_complete(response)
        if self._failure is not None:
            raise self._failure
        return response

    async def _run(self, request: verbs.CodeRequest[R]) -> R:
        """Send a request that runs code, which may call the caller's functions."""
        self._failure = None
        with turns.running(self):
            return await self._send(request)

    async def validate_code(self, code: str) -> bool:
        """Return whether the code compiles in the guest's Python, without running it."""
        return await self.find_fault(code) is None

    async def find_fault(self, code: str) -> CodeFault | None:
        """Return why the code does not compile in the guest's Python; None if it does."""
        check_code(code)
        return await self._ask(verbs.Validate(code=code))

    async def ask_variable(self, request: verbs.VariableRequest) -> GuestAnswer:
        """Ask the session's guest about a variable; its answer is not checked yet."""
        return await self._ask(request)

    async def ask_process(self, request: verbs.ProcessRequest[R]) -> R:
        """Send a request about processes, which does not wait for the running cell."""
        return await self._send(request)

    async def cancel(self) -> None:
        """Interrupt the running cell; kill the guest if it does not obey."""
        if self._is_open():
            await self._send(verbs.Cancel())

    async def checkpoint(self) -> str:
        """Keep the session's present state, and return the mark to roll back to."""
        return await self._ask(verbs.Checkpoint())

    async def rollback(self, mark: str) -> None:
        """Restore the session to the checkpoint; the checkpoint stays usable."""
        await self._ask(verbs.Rollback(mark=mark))

    async def branches(self) -> tuple[str, ...]:
        """Return the marks of the checkpoints that are kept, oldest first."""
        return await self._ask(verbs.Branches())

    async def save(self) -> bytes:
        """Return variables and files as bytes."""
        return await self._ask(verbs.Save())

    async def ports(self) -> tuple[ListeningPort, ...]:
        """List the TCP ports that the guest listens on."""
        return await self._send(verbs.ListPorts())

    async def connect(self, port: int) -> socket.socket:
        """Return a connection with a server on the guest's loopback; PortError without one."""
        return await self._send(verbs.Connect(port=check_port(port)))

    async def commit(
        self, target: str, *, push: bool = False, compression: str = "gzip"
    ) -> CommittedImage:
        """Make an image of the session's own and its changes, as a layer on top."""
        request = verbs.Commit.of(target, push=push, compression=compression)
        return await self._ask(request)

    async def _ask(self, request: verbs.Request[R]) -> R:
        """Send a request that waits for the running cell; a tool of that cell gets ConfigError."""
        turns.refuse_own_tool(self)
        return await self._send(request)

    @abstractmethod
    def _is_open(self) -> bool:
        """Return whether there is a session to send requests to."""

    def _context_value(self) -> Any:
        """What a handler is given as the context: the caller's own, which was never sent back."""
        shared = isinstance(self._context, contexts.Context)
        return self._context.value if shared else self._context

    def _check_level(self, level: Isolation | None) -> None:
        """Fail closed where the other side's sandboxes are weaker than asked."""
        least = self._config.min_isolation
        least = Isolation.JAILED if least is None else least
        if level is None or level < least:
            have = "nothing" if level is None else str(level)
            raise IsolationError(self.backend, f"{least} was asked for; it offers {have}")
