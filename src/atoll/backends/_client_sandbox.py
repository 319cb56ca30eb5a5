"""ClientSandbox: what the daemon's and the service's clients have in common."""

from __future__ import annotations

import asyncio
import dataclasses
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from atoll.errors import IsolationError
from atoll.policy import Isolation, check_positive, names_keywords
from atoll.sandbox import command as commands
from atoll.sandbox import context as contexts
from atoll.sandbox import signatures, turns
from atoll.sandbox.base import BaseSandbox, check_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.config import Handler, SandboxConfig
    from atoll.sandbox.base import ToolChange
    from atoll.sandbox.bridge import HostBridge
    from atoll.sandbox.command import Command, CommandOptions
    from atoll.types import ExecuteResponse, SandboxResult


class ClientSandbox(BaseSandbox):
    """A session that another process holds, used as if it were here."""

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
            await self._send_tools(signatures.describe_all(self._config.tools))

    @names_keywords("option of execute")
    async def execute(
        self, code: str, *, timeout_ms: float | None = None, key: str | None = None
    ) -> SandboxResult:
        """Run a cell. After a result with `state_lost` the next cell gets a fresh guest."""
        check_positive("timeout_ms", timeout_ms)
        check_code(code)
        self._require_open()
        code, refusal = await self._guarded(code, self._config.guard)
        if refusal is not None:
            return refusal
        self._failure = None
        self.logger.log_execution_start("python", self.policy, code)
        with turns.running(self):
            result = await self._run_cell({"code": code, "timeout_ms": timeout_ms}, key)
        self._check_level(result.isolation)
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
        check_positive("timeout_ms", timeout_ms)
        params = commands.to_params(command, options)
        self._failure = None
        self.logger.log_execution_start("shell", self.policy, commands.shown(command))
        with turns.running(self):
            response = await self._run_command({**params, "timeout_ms": timeout_ms})
        self.logger.log_shell_complete(response)
        if self._failure is not None:
            raise self._failure
        return response

    @abstractmethod
    async def _run_cell(self, params: dict[str, Any], key: str | None) -> SandboxResult:
        """Ask the other side to run a cell; return its result, checked in shape."""

    @abstractmethod
    async def _run_command(self, params: dict[str, Any]) -> ExecuteResponse:
        """Ask the other side to run a shell command."""

    @abstractmethod
    async def _send_tools(self, described: list[Any]) -> None:
        """Tell the other side the tools that guest code may call from now on."""

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
